"""The built-in analyses, one module per kind, and the measures that they share."""
