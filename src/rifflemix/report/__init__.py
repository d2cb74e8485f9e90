"""Show results."""
