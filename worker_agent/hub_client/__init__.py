"""The agent's side of the hub: connection, registration, and the assignments received over it."""
