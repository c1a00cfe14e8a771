"""Choice among the variants of an engine."""
