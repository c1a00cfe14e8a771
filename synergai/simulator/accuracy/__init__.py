"""Requests for engines with variants under changing load: rules of choice and bounds compared."""
