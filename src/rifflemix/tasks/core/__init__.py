"""What every task is, and what tasks share whatever their data."""
