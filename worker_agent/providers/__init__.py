"""Execution providers: what runs a model within an inference runtime, such as CUDA."""
