"""Dropout with a seeded mask: multithreaded, reproducible on resume, and not stored."""

from rifflemix.ops.dropout.api import dropout, dropout_attention

__all__ = ["dropout", "dropout_attention"]
