"""What a child process tells its parent: one JSON object per line of a pipe."""

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
    """Dataclasses as lines and back.

    Args:
        kinds: the dataclasses; their fields are what JSON knows.
    """

    def __init__(self, *kinds: type[Any]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}

    def encode(self, message: T) -> bytes:
        """The line for `message`."""
        fields = asdict(cast("Any", message))
        return json.dumps({"kind": type(message).__name__, **fields}).encode() + b"\n"

    def decode(self, line: bytes) -> T:
        """The message of a line that `encode` wrote."""
        fields = json.loads(line)
        message: T = self._kinds[fields.pop("kind")](**fields)
        return message


@contextmanager
def run_with_report_pipe(command: Sequence[str], log: Path) -> Iterator[IO[bytes]]:
    """Run a process, and give the lines that it reports; it never outlives the block.

    Args:
        command: what to run; it is told the pipe's descriptor by a further ``--report``.
        log: where its output goes.

    Raises:
        OSError: the log cannot be written, or the command not be run.
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
