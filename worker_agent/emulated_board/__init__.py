"""Emulation of Jetson boards in a directory, for tests and for trying power modes without one."""
