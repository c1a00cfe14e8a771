"""The Open Inference Protocol served by an agent without a gateway."""
