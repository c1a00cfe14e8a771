"""Jetson boards as a folder: for the tests, and to try power modes where no board is at hand."""
