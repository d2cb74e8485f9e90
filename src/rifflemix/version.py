"""Version of rifflemix."""

VERSION = "0.1.0"
