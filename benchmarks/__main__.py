"""Measure SynergAI in comparison with bare gRPC and plain ONNX Runtime.

python -m benchmarks [identity] [mobilenet] [large] [batching] [--rounds N] [--write FILE] …
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from benchmarks import batching, identity, large_requests, mobilenet
from benchmarks.client import WrongResponse
from benchmarks.report import DocumentBlock, Section, describe_machine, preamble
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


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


async def run(names: Sequence[str], seconds: float | None, rounds: int) -> list[Section]:
    """Measure these parts in sequence."""
    sections = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"measuring: {name}", flush=True)
            part = PARTS[name]
            section = await part.measure(Path(folder), seconds or part.seconds, rounds)
            print(f"\n{section.markdown()}\n", flush=True)
            sections.append(section)
    return sections


def main() -> None:
    """Parse the command line, measure, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, help="duration of each probe per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    arguments = parser.parse_args()
    names = arguments.parts or list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"unknown part {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    machine = describe_machine()
    try:
        block = DocumentBlock(arguments.write, "bench") if arguments.write else None
        sections = uvloop.run(run(names, arguments.seconds, arguments.rounds))
    except (SynergaiError, WrongResponse) as error:
        parser.exit(1, f"{error}\n")
    if block is not None:
        intro = preamble("make bench", machine)
        block.write("\n\n".join([intro, *(section.markdown() for section in sections)]))


if __name__ == "__main__":
    main()
