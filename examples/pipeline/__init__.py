"""A model that no worker may hold, served by two of them in stages."""
