"""Engines on disk: definitions, model files, samples, pre- and post-processing."""
