"""The one entry: measure everything that needs nobody else's software, in one run.

python -m benchmarks [identity] [photographs] [large] [batching] [--rounds N] [--write FILE] …
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from benchmarks import batching, identity, large_requests, mobilenet
from benchmarks.client import WrongAnswer
from benchmarks.report import Place, Section, machine, preamble
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """A section, and how long each of its probes runs per round unless somebody says otherwise."""

    measure: Callable[[Path, float, int], Awaitable[Section]]
    seconds: float


PARTS: Final = {
    "identity": Part(identity.measure, 1.0),
    "photographs": Part(mobilenet.measure, 3.0),
    "large": Part(large_requests.measure, 1.0),
    "batching": Part(batching.measure, 1.0),
}


async def run(names: Sequence[str], seconds: float | None, rounds: int) -> list[Section]:
    """Measure these parts, one after the other."""
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
    """Run it from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--seconds", type=float, help="how long each probe runs per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the result in there, too")
    arguments = parser.parse_args()
    names = arguments.parts or list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began = machine()
    try:
        place = Place(arguments.write, "bench") if arguments.write else None
        sections = uvloop.run(run(names, arguments.seconds, arguments.rounds))
    except (SynergaiError, WrongAnswer) as error:
        parser.exit(1, f"{error}\n")
    if place is not None:
        intro = preamble("make bench", began)
        place.write("\n\n".join([intro, *(section.markdown() for section in sections)]))


if __name__ == "__main__":
    main()
