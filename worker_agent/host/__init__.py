"""The engine hosts: child processes with one engine each, and how the agent works with them."""
