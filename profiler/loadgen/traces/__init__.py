"""Open-loop request traces: requests are sent on schedule, independent of responses."""
