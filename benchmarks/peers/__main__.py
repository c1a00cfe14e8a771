"""Install other servers and measure our gateway beside each, in one run.

python -m benchmarks.peers [triton] [kserve] [mlserver] [ray] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks.client import WrongAnswer
from benchmarks.peers.comparison import QUESTIONS, Setting, measure
from benchmarks.peers.registry import PEERS
from benchmarks.report import Place, machine, preamble
from benchmarks.servers import ours
from synergai.errors import SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


async def run(names: Sequence[str], cache: Path, seconds: float, rounds: int) -> list[str]:
    """Measure beside each peer, one after the other; what became of each, as Markdown."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        for question in QUESTIONS:
            question.workload.build(models)
        with (
            ours(Path(folder, "ours"), models) as own,
            ours(Path(folder, "apart"), models, apart=True) as apart,
        ):
            setting = Setting(
                own=own,
                apart=apart,
                models=models,
                cache=cache,
                scratch=Path(folder),
                seconds=seconds,
                rounds=rounds,
            )
            for peer in (PEERS[name] for name in names):
                print(f"measuring beside {peer.title}", flush=True)
                try:
                    sections = await measure(peer, setting)
                except (Unavailable, WrongAnswer) as error:
                    result = f"### {peer.title}\n\nNot measured: {error}"
                else:
                    result = "\n\n".join(section.markdown() for section in sections)
                print(f"\n{result}\n", flush=True)
                results.append(result)
    return results


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)}; all")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each probe per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(".peers"), help="for environments")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result in there, too")
    arguments = parser.parse_args()
    names = arguments.peers or list(PEERS)
    if unknown := sorted(set(names) - set(PEERS)):
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}")
    began = machine()
    try:
        place = Place(arguments.write, "peers") if arguments.write else None
        results = uvloop.run(run(names, arguments.cache, arguments.seconds, arguments.rounds))
    except (SynergaiError, WrongAnswer) as error:
        parser.exit(1, f"{error}\n")
    if place is not None:
        place.write("\n\n".join([preamble("make bench-peers", began), *results]))


if __name__ == "__main__":
    main()
