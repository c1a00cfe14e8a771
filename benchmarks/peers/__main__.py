"""Install other model servers and compare the gateway with each of them.

python -m benchmarks.peers [triton] [kserve] [mlserver] [ray] [--seconds S] [--rounds N]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.client import WrongResponse
from benchmarks.command_line import parser_for, run
from benchmarks.peers import start
from benchmarks.peers.comparison import SCENARIOS, Setup, measure
from benchmarks.peers.registry import PEERS
from benchmarks.servers import run_serve, run_synergai
from synergai.errors import Unavailable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


async def compare(names: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Compare with each peer in sequence; print all, return summaries."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        for scenario in SCENARIOS:
            scenario.workload.build(models)
        with (
            run_synergai(Path(folder, "default"), models) as gateway,
            run_serve(Path(folder, "serve"), models) as serve,
            run_synergai(Path(folder, "pinned"), models, pinned=True) as pinned,
        ):
            setup = Setup(
                gateway=gateway,
                serve=serve,
                pinned=pinned,
                models=models,
                cache=arguments.cache,
                scratch=Path(folder),
                seconds=arguments.seconds,
                rounds=arguments.rounds,
            )
            for peer in (PEERS[name] for name in names):
                print(f"comparing with {peer.title}", flush=True)
                try:
                    sections = await measure(peer, setup)
                except (Unavailable, WrongResponse) as error:
                    results.append(f"### {peer.title}\n\nNot measured: {error}")
                    print(f"\n{results[-1]}\n", flush=True)
                else:
                    results += [section.summary() for section in sections]
                    print("", *(section.markdown() for section in sections), sep="\n\n", flush=True)
        print("measuring the start", flush=True)
        peers = [PEERS[name] for name in names]
        results.append(
            await start.measure(peers, arguments.cache, Path(folder, "start"), arguments.rounds)
        )
        print(f"\n{results[-1]}\n", flush=True)
    return results


def main() -> None:
    """Run the benchmark from the command line."""
    parser = parser_for("benchmarks.peers", __doc__)
    parser.add_argument("--seconds", type=float, default=0.6, help="duration of a probe per round")
    parser.add_argument("--cache", type=Path, default=Path(".peers"), help="for environments")
    run(parser, list(PEERS), compare, block="peers", command="make bench-peers")


if __name__ == "__main__":
    main()
