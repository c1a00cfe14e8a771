"""What the gateway counts, and how it is read."""
