"""Send sequences of frames to the native server, and the legal ones to grpcio's as well.

    python tests/acceptance/frame_sequences.py --legal 10000 --illegal 10000 --state FILE

A legal client must see the same of both servers. An illegal one must get what the rule says that it
breaks, while another client's calls are answered. The native server's memory must not grow, and its
log must have no traceback. With a file for the state, a script that was ended goes on where it was.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tests.acceptance.scripts import verdict
from tests.gate.conversation import Conversation
from tests.gate.rules import ANSWERED
from tests.gate.sequences import UNLIKE_GRPCIO
from tests.gate.server import Running, running
from tests.gate.trial import Trial, call

_BATCH: Final = 200
_WARM: Final = 1_000
"""Sequences after which the memory is measured first."""
_GROWTH_BYTES: Final = 8 << 20


@dataclass
class State:
    """How far the script is.

    Attributes:
        legal: legal sequences that were sent.
        illegal: illegal ones.
        errors: what was wrong.
    """

    legal: int = 0
    illegal: int = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "State":
        """Return the state of a file; the first one without it."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Keep the state in a file."""
        path.write_text(json.dumps(asdict(self)))


def send_legal(native: Trial, grpcio: Trial, seeds: range) -> list[str]:
    """Send legal sequences to both servers; return the differences."""
    errors = []
    for seed in seeds:
        seen, wanted = native.legal(seed), grpcio.legal(seed)
        if seen.broken:
            errors.append(f"legal {seed}: {'; '.join(seen.broken)}")
        elif seen.answers != wanted.answers:
            ends = [{each: end for each, (end, _) in one.answers.items()} for one in (seen, wanted)]
            errors.append(f"legal {seed}: {ends[0]}, and {ends[1]} of grpcio")
    return errors


def send_illegal(server: Running, seeds: range) -> list[str]:
    """Send illegal sequences; return the outcomes that no rule wants."""
    errors, native = [], Trial(server)
    with Conversation(server.plain) as bystander:
        for seed in seeds:
            rule, outcome = native.illegal(seed)
            if outcome != rule.outcome:
                errors.append(f"illegal {seed}: {rule.section}, {rule.sent}: {outcome}")
            if call(bystander, 2 * (seed - seeds.start)) != ANSWERED:
                errors.append(f"illegal {seed}: another client was disturbed")
    return errors


def run(legal: int, illegal: int, path: Path, folder: Path) -> list[str]:
    """Send so many sequences, less those of the state in a file; return what was wrong."""
    state = State.read(path)
    log = folder / "native.log"
    with running("native", log) as server, running("grpcio", folder / "grpcio.log") as other:
        native, grpcio = Trial(server), Trial(other, is_grpcio=True)
        memory: list[int] = []
        sent = 0
        while state.legal < legal or state.illegal < illegal:
            seeds = range(state.legal, min(state.legal + _BATCH, legal))
            state.errors += send_legal(native, grpcio, seeds)
            state.legal += len(seeds)
            bad_seeds = range(state.illegal, min(state.illegal + _BATCH, illegal))
            state.errors += send_illegal(server, bad_seeds)
            state.illegal += len(bad_seeds)
            state.write(path)
            sent += len(seeds) + len(bad_seeds)
            if sent >= _WARM:
                memory.append(psutil.Process(server.process.pid).memory_info().rss)
            print(
                f"{state.legal} legal, {state.illegal} illegal, {len(state.errors)} errors,"
                f" {memory[-1] / 1e6 if memory else 0:.1f} MB",
                flush=True,
            )
    errors = list(state.errors)
    if memory and memory[-1] - memory[0] > _GROWTH_BYTES:
        errors.append(f"the memory grew from {memory[0]:,} to {memory[-1]:,} bytes")
    if "Traceback" in log.read_text():
        errors.append(f"{log} has a traceback")
    return errors


def main() -> int:
    """Run the script; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--legal", type=int, default=10_000)
    parser.add_argument("--illegal", type=int, default=10_000)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    for what, difference in UNLIKE_GRPCIO.items():
        print(f"not compared: {what}: {difference}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = options.state or folder / "state.json"
        return verdict(run(options.legal, options.illegal, state, folder))


if __name__ == "__main__":
    raise SystemExit(main())
