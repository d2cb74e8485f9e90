"""Properties of molecules."""
