"""Power modes and power telemetry of the machine."""
