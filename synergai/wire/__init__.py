"""The wire: request codec, conversion, validation, gRPC conventions, TLS, work socket."""
