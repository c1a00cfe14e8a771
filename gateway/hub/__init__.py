"""The agents' connections: registration, heartbeats, orders and reports."""
