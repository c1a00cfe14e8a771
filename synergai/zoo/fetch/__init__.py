"""Fetches the weights that MLPerf published: where they are, how they come, what is believed."""
