"""Search for the best configurations of engines, with few measurements.

A strategy proposes what to measure next and is told the result. Nothing here measures, reads a
clock or a file: the profiler drives a search on a real machine, and ``benchmarks/search.py`` on
recorded and synthetic profiles.
"""
