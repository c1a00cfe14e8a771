"""The project's own strategies, one per file."""
