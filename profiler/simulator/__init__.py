"""Simulator: the scheduling core in virtual time, with workloads and live experiments."""

import profiler.simulator.policies  # noqa: F401 - registers them, for simulations and replays
