"""A gateway and a worker in one process."""
