"""SynergAI: inference under QoS deadlines on unlike machines."""
