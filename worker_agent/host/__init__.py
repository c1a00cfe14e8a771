"""The engine host: a child process that runs one engine."""

import os

# Read by ONNX Runtime when it starts. By default, it sends what it runs on to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
