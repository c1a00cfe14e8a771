"""Inference requests: options, admission, dispatch, timings."""
