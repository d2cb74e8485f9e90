"""Replace attention in models of other libraries."""
