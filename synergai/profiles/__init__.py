"""Configuration dictionary: model and database."""
