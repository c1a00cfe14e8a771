"""Metrics and statistics of the gateway, and the HTTP server that exposes them."""
