"""Server of the Open Inference Protocol, shared by gateway and agent."""
