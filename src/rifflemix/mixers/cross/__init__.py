"""Cross-attention mixers, for decoders."""
