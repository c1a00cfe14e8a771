"""Measure SynergAI in comparison with bare gRPC and plain ONNX Runtime.

python -m benchmarks [identity] [mobilenet] [large] [batching] [--rounds N] [--write FILE] …
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import batching, identity, large_requests, mobilenet
from benchmarks.command_line import parser_for, run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.report import Section


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the report, and the default duration of each of its probes per round."""

    measure: Callable[[Path, float, int], Awaitable[Section]]
    seconds: float


PARTS: Final = {
    "identity": Part(identity.measure, 1.0),
    "mobilenet": Part(mobilenet.measure, 3.0),
    "large": Part(large_requests.measure, 1.0),
    "batching": Part(batching.measure, 1.0),
}


async def measure(names: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Measure these parts in sequence; print all, return a summary per part."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"measuring: {name}", flush=True)
            part = PARTS[name]
            seconds = arguments.seconds or part.seconds
            section = await part.measure(Path(folder), seconds, arguments.rounds)
            texts.append(section.summary())
            print(f"\n{section.markdown()}\n", flush=True)
    return texts


def main() -> None:
    """Run the benchmark from the command line."""
    parser = parser_for("benchmarks", __doc__)
    parser.add_argument("--seconds", type=float, help="duration of each probe per round")
    run(parser, list(PARTS), measure, block="bench", command="make bench")


if __name__ == "__main__":
    main()
