"""Emulation of Jetson boards in a directory."""
