"""What every call of gRPC or HTTP passes on its way to its handler."""
