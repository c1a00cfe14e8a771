"""Simulator: the scheduling core in virtual time, with workloads, bounds and live experiments."""
