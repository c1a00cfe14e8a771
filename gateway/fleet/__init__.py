"""What the gateway knows of its workers and their engines."""
