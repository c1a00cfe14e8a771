"""Admission control: limits, and load shedding."""
