"""What transformers is told of us, by `rifflemix.register_hf`."""
