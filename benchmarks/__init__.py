"""Benchmarks, reported as ratios between servers measured in the same run.

``python -m benchmarks`` compares SynergAI with bare gRPC and plain ONNX Runtime,
``python -m benchmarks.peers`` with other model servers.
"""
