"""What mixers that attend share."""
