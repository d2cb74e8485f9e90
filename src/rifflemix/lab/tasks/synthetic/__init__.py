"""Tasks whose data is generated: sorting, points on bodies."""
