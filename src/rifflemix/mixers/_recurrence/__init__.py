"""Parts that recurrent mixers share."""
