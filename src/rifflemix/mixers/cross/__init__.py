"""Mixers between two sequences, for decoders."""
