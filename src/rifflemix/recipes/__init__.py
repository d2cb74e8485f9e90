"""The papers' rows as configurations."""
