"""End-to-end run on one machine: build, profile, serve, measure and report."""
