"""Tensors between stages, which agents send each other directly."""
