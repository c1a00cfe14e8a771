"""Early exits on digits: ``python -m benchmarks.early_exits``.

MobileNet reads digits whole, in stages with exits, and with an exit before the whole engine. Each
of 800 images that neither heads nor thresholds have seen is sent to the three fleets, 20 images in
turn.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from examples.pipeline import exits
from examples.training.digits_mobilenet import HELD_OUT


def main() -> None:
    """Train, serve and measure."""
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary:
        folder = Path(temporary)
        ways, made = exits.make(folder / "models")
        runs = exits.compare(folder / "models", folder, ways, HELD_OUT)
    whole = runs[exits.WHOLE]
    for way, run in runs.items():
        print(
            f"{way:20} mean {1e3 * run.mean_s():5.2f} ms, {run.mean_s() / whole.mean_s():6.1%} of "
            f"the whole engine's; {run.accuracy():.2%} right, "
            f"{100 * (whole.accuracy() - run.accuracy()):+.2f} points lost"
        )
        for each in made:
            if here := run.left_at.count(each.cut.tensor):
                print(
                    f"  {here} of {len(run.left_at)} queries left at {each.cut.tensor}; the "
                    f"calibration expected {each.reach * each.exit.rate:.1%}"
                )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    main()
