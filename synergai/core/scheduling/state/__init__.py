"""What the core knows: jobs, workers and assignments, and what they cost."""
