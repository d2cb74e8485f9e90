"""Dropout whose mask is a function of a seed: drawn by all threads, exact on resume, not stored."""

from rifflemix.ops.dropout.api import dropout, dropout_attention

__all__ = ["dropout", "dropout_attention"]
