"""Faults of grpcio and their remedies: one module per fault, with the condition to remove it."""
