"""Comparison with other model servers, each installed into its own virtual environment.

``serve_*`` run in a peer's environment, without SynergAI's dependencies.
"""
