"""The core's rules hold under every policy, those that only experiments compare included."""

import profiler.simulator.policies  # noqa: F401 - registers them
