"""Parts that mixers with long convolutions and state spaces share."""
