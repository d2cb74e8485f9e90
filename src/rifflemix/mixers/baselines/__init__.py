"""The peers that the papers' tables compare with."""
