"""Dispatching: drives the scheduling core and takes in the workers' reports."""
