"""What the agent and an engine host share: frames and the memory arena."""
