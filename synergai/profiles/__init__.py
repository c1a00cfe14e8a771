"""Configuration dictionary: model, database and text formats."""
