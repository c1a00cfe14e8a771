"""Open-loop request traces: requests are sent when the trace says, whatever became of others."""
