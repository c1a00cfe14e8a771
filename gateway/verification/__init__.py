"""Comparison of workers' answers, to find those that answer falsely."""
