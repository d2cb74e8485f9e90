"""Depthwise convolution over a few tokens, for mixers and models; not a public operator."""
