"""Evaluation of scheduling policies from simulated runs (thesis, chapter 7)."""
