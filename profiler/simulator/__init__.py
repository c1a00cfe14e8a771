"""Simulator: the scheduling core in virtual time, with workloads, bounds and live experiments."""

import profiler.simulator.policies  # noqa: F401 - registers them, for simulations and replays
