"""Dispatching: runs the scheduling core and applies what workers report."""
