"""Pipelines in virtual time: queries that may run on several execution places at once."""
