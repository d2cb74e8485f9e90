"""Image tasks: pixels, patches, byte values or whole images."""
