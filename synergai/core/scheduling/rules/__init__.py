"""What applies under every policy."""
