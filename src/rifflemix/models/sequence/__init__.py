"""Sequence classifiers: the encoder of `compare`, the Long Range Arena, MEGA, S4."""
