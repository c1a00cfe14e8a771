"""The engines available on this machine."""
