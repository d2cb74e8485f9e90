"""Look inside mixers and models."""
