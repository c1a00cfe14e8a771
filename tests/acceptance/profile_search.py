"""Searches on this machine: against an exhaustive profile back to back, and on emulated boards.

Run by `test_power_modes_acceptance.py` in a moderate size, or in full on an idle machine::

    python -m tests.acceptance.profile_search --models models --directory /tmp/search

which takes as long as one exhaustive profile of all engines and a quarter of that.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from profiler.dictionary.files import load_dictionary
from synergai.profiles.dictionary import PREDICTED, ProfileEntry

WORKER_CLASS = "searched"


def profile(models: Path, dictionary: Path, *options: str, root: Path = Path("/")) -> float:
    started = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "synergai", "profile", "--models", str(models)),
            *("--dictionary", str(dictionary), "--output", str(dictionary.with_suffix(".logs"))),
            *("--worker-class", WORKER_CLASS, *options),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SYNERGAI_PROFILE_ROOT": str(root)},
    )
    return time.monotonic() - started


def compare(models: Path, directory: Path, options: Sequence[str]) -> dict[str, object]:
    """Profile everything, then search; return the durations and the regret of each engine.

    The regret is relative to the exhaustive profile, which has an error of its own.
    """
    everything, searched = (directory / name for name in ("exhaustive.db", "searched.db"))
    exhaustive_s = profile(models, everything, *options)
    search_s = profile(models, searched, "--search", *options)
    truth: dict[str, list[ProfileEntry]] = {}
    for entry in load_dictionary(everything):
        truth.setdefault(entry.engine, []).append(entry)
    regrets = {}
    for engine, entries in truth.items():
        found = [entry for entry in load_dictionary(searched) if entry.engine == engine]
        chosen = max(found, key=lambda entry: entry.planned_qps)
        qps = {entry.configuration: entry.qps for entry in entries}
        regrets[engine] = 1 - qps[chosen.configuration] / max(qps.values())
    return {
        "exhaustive_s": exhaustive_s,
        "search_s": search_s,
        "share": search_s / exhaustive_s,
        "regrets": regrets,
    }


def search_board(root: Path, models: Path, directory: Path) -> dict[str, object]:
    """Search on an emulated board; return what was measured and predicted, and the modes."""
    dictionary = directory / "board.db"
    profile(
        models,
        dictionary,
        *("--search", "--power", "nvpmodel", "--budget", "0.5"),
        *("--queries", "10", "--min-duration", "0.3"),
        root=root,
    )
    entries = list(load_dictionary(dictionary))
    measured = [entry for entry in entries if entry.label != PREDICTED]
    return {
        "measured": len(measured),
        "predicted": len(entries) - len(measured),
        "modes": sorted({entry.configuration.power_mode for entry in entries}),
        "measured_modes": sorted({entry.configuration.power_mode for entry in measured}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="model directory")
    parser.add_argument("--directory", type=Path, required=True, help="folder for all else")
    parser.add_argument("options", nargs="*", help="options of synergai profile, after --")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(json.dumps(compare(arguments.models, arguments.directory, arguments.options), indent=1))


if __name__ == "__main__":
    main()
