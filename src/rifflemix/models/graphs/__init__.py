"""Models of molecules."""
