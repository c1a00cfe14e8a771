"""Measurements as ratios within one run.

``python -m benchmarks`` measures us, ``python -m benchmarks.peers`` us beside other servers.
"""
