"""Pipe over which a child process reports to its parent: one JSON object per line."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import IO

T = TypeVar("T")


class MessageCodec(Generic[T]):
    """Codec between lines of JSON and dataclasses with fields of JSON types."""

    def __init__(self, *kinds: type[Any]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def encode(self, message: T) -> bytes:
        """Encode `message` as a line."""
        fields = asdict(cast("Any", message))
        return json.dumps({"kind": type(message).__name__, **fields}).encode() + b"\n"

    def decode(self, line: bytes) -> T:
        """Decode a line written by `encode`."""
        fields = json.loads(line)
        message: T = self._kinds[fields.pop("kind")](**fields)
        return message


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
