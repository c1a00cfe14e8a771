"""Measurement of engines on this machine."""
