"""Agent connections: registration, heartbeats, orders and reports."""
