"""Small layers shared by the models."""
