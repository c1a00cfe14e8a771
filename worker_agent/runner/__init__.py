"""Execution of work items on the engine hosts, in the order received."""
