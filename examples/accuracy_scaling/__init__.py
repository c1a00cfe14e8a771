"""Example: an engine with variants under a changing load; see examples/README.md."""
