"""What ties the agent to its gateway: the connection, its streams, and the work on them."""
