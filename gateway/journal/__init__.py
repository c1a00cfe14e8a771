"""Accepted jobs on disk, and what is known of each."""
