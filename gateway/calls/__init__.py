"""Calls of clients, from gRPC and HTTP to the dispatcher and back."""
