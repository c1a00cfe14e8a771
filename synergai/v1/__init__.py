"""SynergAI wire contract, generated from proto/synergai/v1."""
