"""Small layers that several models share."""
