"""Install other model servers and compare the gateway with each of them.

python -m benchmarks.peers [triton] [kserve] [mlserver] [ray] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks.client import WrongResponse
from benchmarks.peers.comparison import SCENARIOS, Setup, measure
from benchmarks.peers.registry import PEERS
from benchmarks.report import DocumentBlock, describe_machine, preamble
from benchmarks.servers import run_synergai
from synergai.errors import SynergaiError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


async def run(names: Sequence[str], cache: Path, seconds: float, rounds: int) -> list[str]:
    """Compare with each peer in sequence; return one Markdown text per peer."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        for scenario in SCENARIOS:
            scenario.workload.build(models)
        with (
            run_synergai(Path(folder, "default"), models) as servers,
            run_synergai(Path(folder, "pinned"), models, pinned=True) as pinned,
        ):
            setup = Setup(
                servers=servers,
                pinned=pinned,
                models=models,
                cache=cache,
                scratch=Path(folder),
                seconds=seconds,
                rounds=rounds,
            )
            for peer in (PEERS[name] for name in names):
                print(f"comparing with {peer.title}", flush=True)
                try:
                    sections = await measure(peer, setup)
                except (Unavailable, WrongResponse) as error:
                    result = f"### {peer.title}\n\nNot measured: {error}"
                else:
                    result = "\n\n".join(section.markdown() for section in sections)
                print(f"\n{result}\n", flush=True)
                results.append(result)
    return results


def main() -> None:
    """Parse the command line, measure, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="duration of a probe per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=Path, default=Path(".peers"), help="for environments")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    arguments = parser.parse_args()
    names = arguments.peers or list(PEERS)
    if unknown := sorted(set(names) - set(PEERS)):
        parser.error(f"unknown peer {', '.join(unknown)}; choose from {', '.join(PEERS)}")
    machine = describe_machine()
    try:
        block = DocumentBlock(arguments.write, "peers") if arguments.write else None
        results = uvloop.run(run(names, arguments.cache, arguments.seconds, arguments.rounds))
    except (SynergaiError, WrongResponse) as error:
        parser.exit(1, f"{error}\n")
    if block is not None:
        block.write("\n\n".join([preamble("make bench-peers", machine), *results]))


if __name__ == "__main__":
    main()
