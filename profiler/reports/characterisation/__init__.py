"""Characterisation of engines and workers from a configuration dictionary (thesis, chapter 5)."""
