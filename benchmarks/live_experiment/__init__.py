"""The thesis's experiments in a real gateway with emulated engines."""
