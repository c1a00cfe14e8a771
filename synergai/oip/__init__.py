"""Open Inference Protocol stubs, generated from proto/synergai/oip.

Import lazily: stubs of this protocol from another library cannot live in the same process,
because all of them register the protobuf package `inference`.
"""
