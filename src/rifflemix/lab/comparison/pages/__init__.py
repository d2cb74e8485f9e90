"""Table, notes, plot and pages of a comparison."""
