"""Evaluation of scheduling policies from simulated or recorded runs (thesis, chapter 7)."""
