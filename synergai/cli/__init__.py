"""The synergai command: one module per group of commands."""
