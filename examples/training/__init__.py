"""Training of the networks that tests and examples use, in NumPy."""
