"""Engines of the gateway's store that are placed on this worker: fetching, installing, evicting."""
