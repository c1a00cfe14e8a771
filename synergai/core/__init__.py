"""What the gateway decides: pure and synchronous, events in, commands out."""
