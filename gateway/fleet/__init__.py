"""Connected workers and the engines they serve."""
