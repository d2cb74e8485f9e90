"""Language models: decoders and encoder-decoders."""
