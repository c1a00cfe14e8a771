"""Deployment of engines in stages: what is wanted, and the steps towards it."""
