"""Chart and base for Kubernetes."""
