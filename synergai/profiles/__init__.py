"""The configuration dictionary: its model, its store and its text formats."""
