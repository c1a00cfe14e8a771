"""One of the thesis's experiments in a real gateway, compared with the simulation.

    python -m benchmarks.live_experiment --policy malleable --experiment DH-FH --seed 3

The jobs run through a real gateway and agent processes, whose emulated engines take the profile's
times divided by --time-scale. The gateway's event log is then replayed. All figures are in the
profile's time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.live_experiment.emulation import number_configurations
from benchmarks.live_experiment.live import run_live
from benchmarks.live_experiment.timeline import plot_timeline
from profiler.dictionary.files import load_dictionary
from profiler.simulator.simulation import scheduling_settings, simulate, summarize
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from profiler.simulator.sweep import PROFILE_AGNOSTIC
from profiler.simulator.workload import EXPERIMENTS, Profile, draw
from synergai.cli.output import print_json, print_table
from synergai.core.scheduling.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Mapping

_METRICS: Final = (
    ("violations", "violations", 0),
    ("mean_wait_s", "mean wait (s)", 2),
    ("mean_excess_s", "mean excess (s)", 2),
    ("e2e_mean_s", "mean end-to-end (s)", 2),
    ("e2e_p99_s", "p99 end-to-end (s)", 2),
    ("decisions", "decisions", 0),
    ("decision_p99_us", "p99 decision (µs)", 0),
)


def main() -> None:
    """Run the experiment; exit with 1 if the replay gives other commands."""
    options = _parse()
    profile = Profile(load_dictionary(RECONSTRUCTED_PROFILE))
    workload = draw(
        number_configurations(profile),
        EXPERIMENTS[options.experiment],
        options.seed,
        sessions=options.sessions,
        estimate_error=0.15,
    )
    simulated = simulate(workload, scheduling_settings(options.policy))
    directory = options.directory or Path(tempfile.mkdtemp(prefix="synergai-experiment-"))
    recording = run_live(workload, options.policy, options.time_scale, directory)
    results = {"simulated": summarize(simulated), "live": summarize(recording.run)}
    records = {name: asdict(result) for name, result in results.items()}
    if options.json:
        print_json(records)
    else:
        _print_records(records)
        print(f"logs: {directory}")
    if options.plot is not None:
        plot_timeline(recording.run, options.plot)
    if recording.mismatches:
        sys.exit(
            f"replaying the event log, {recording.mismatches} of {recording.events} events gave "
            "commands other than the recorded ones"
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.live_experiment",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    offered = [name for name in POLICIES.names() if name not in PROFILE_AGNOSTIC]
    parser.add_argument("--policy", choices=offered, default="synergai")
    parser.add_argument("--experiment", choices=list(EXPERIMENTS), default="DH-FH")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-scale", type=float, default=60.0, help="speed-up of the run")
    parser.add_argument(
        "--sessions",
        choices=("warm", "prewarmed"),
        default="prewarmed",
        help="T_pre is paid once per session, or never",
    )
    parser.add_argument("--directory", type=Path, help="new directory for models, state and logs")
    parser.add_argument("--plot", type=Path, help="PNG file of the run's timeline")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def _print_records(records: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        [title, *(f"{record[name]:,.{digits}f}" for record in records.values())]
        for name, title, digits in _METRICS
    ]
    print_table(("", *records), rows)


if __name__ == "__main__":
    main()
