"""Generators of the configurations to search, one per file.

The thesis has two (chapter 4): a performance-aware one for threads, and an architecture-aware one
for power modes. Each extends drafts of configurations by one dimension, and leaves out what is
known to be bad, with the reason.
"""
