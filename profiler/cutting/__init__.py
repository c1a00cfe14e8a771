"""Cutting of ONNX models into stages, at tensors through which all data flows."""
