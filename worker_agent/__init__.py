"""The agent: owns engines on one machine and runs the gateway's assignments."""
