"""The clients' port with pygrpc-native: HTTP/2 and gRPC in Rust, outside the interpreter's lock."""
