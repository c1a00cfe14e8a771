"""Pipe over which a child process reports to its parent: one JSON object per line."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import IO

    from msgspec import Struct


def send_report(descriptor: int, message: Struct) -> None:
    """Send a message, whose struct is tagged; lines are shorter than a pipe's atomic write size."""
    os.write(descriptor, json.encode(message) + b"\n")


@contextmanager
def run_with_report_pipe(command: Sequence[str], log: Path) -> Iterator[IO[bytes]]:
    """Run a command with ``--report FD``, and yield the reading end of its report pipe.

    The process is killed when the context is left.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as lines:
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*command, "--report", str(writing)],
                    pass_fds=(writing,),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
        finally:
            os.close(writing)
        try:
            yield lines
        finally:
            process.kill()
            process.wait()
