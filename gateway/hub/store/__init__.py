"""Store of engines, which clients push and agents fetch."""
