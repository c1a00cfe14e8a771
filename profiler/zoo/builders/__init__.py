"""Builders of the zoo's engines: seeded or trained weights, and model writers."""
