"""Engines with variants under changing load: rules that choose variants, and bounds, compared."""
