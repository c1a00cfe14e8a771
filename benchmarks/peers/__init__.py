"""Other servers, installed into environments of their own and asked what we are asked.

``serve_*`` run in a peer's environment, which has neither our dependencies nor our settings.
"""
