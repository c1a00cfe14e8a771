"""Readers of model files: describe and check a model without its runtime."""
