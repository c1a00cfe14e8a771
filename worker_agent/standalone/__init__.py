"""Open Inference Protocol server of the agent, for use without a gateway."""
