"""One whole run on one machine: build, profile, serve, measure, and a table a person can read."""
