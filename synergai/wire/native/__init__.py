"""A gRPC server on the event loop: HTTP/2 as far as gRPC needs it."""
