"""The gateway's public gRPC services: they convert, delegate, and convert back."""
