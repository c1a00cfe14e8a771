"""The gateway's public gRPC services: converters between messages and the domain."""
