"""Offline profiler: measures engines in each configuration and writes the dictionary."""
