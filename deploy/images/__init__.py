"""Images for containers."""
