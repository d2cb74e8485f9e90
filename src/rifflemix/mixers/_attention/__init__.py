"""Parts that attention mixers share."""
