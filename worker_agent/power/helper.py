"""``synergai-power``: the only program that runs as root, kept as small as possible.

systemd starts one process per connection to its socket (``Accept=yes``). The process reads the
name of one mode, switches to it if root's list allows it, replies with one line of JSON and
exits. It opens no port, reads no other input, and imports the standard library only; it and what it
imports also run on the Python 3.8 of boards, whose packages the distribution keeps up to date.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import select
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.errors import InvalidInput, SynergaiError
from synergai.names import validate_name
from worker_agent.power.controller import ModeRefused, SwitchFailed
from worker_agent.power.files import MachineFiles
from worker_agent.power.selection import open_controller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALLOWED: Final = "/etc/synergai/power-modes"
_LOCK: Final = "/run/synergai-power.lock"
_MAX_REQUEST_BYTES: Final = 256
_REQUEST_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one request from standard input or from the command line."""
    parser = argparse.ArgumentParser(
        prog="synergai-power",
        description="Switch to one of the allowed power modes and verify it.",
        epilog="Example: synergai-power MODE_15W_4CORE",
    )
    parser.add_argument("mode", nargs="?", help="read from standard input if omitted")
    parser.add_argument("--allow", default=ALLOWED, metavar="FILE", help="one mode per line")
    parser.add_argument("--root", type=Path, default=Path("/"), help="directory instead of /")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    files = MachineFiles(options.root)
    try:
        mode = _read_request() if options.mode is None else str(options.mode)
        answer = _switch(mode, files, options.allow)
    except ModeRefused as error:
        answer = {"error": "refused", "message": str(error)}
    except SwitchFailed as error:
        answer = {"error": "failed", "message": str(error), "mode": error.reading.mode}
    except InvalidInput as error:
        answer = {"error": "unknown", "message": str(error)}
    except (SynergaiError, OSError) as error:
        answer = {"error": "failed", "message": str(error)}
    if "error" in answer:
        _log.warning("%s", answer["message"])
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()
    return 1 if "error" in answer else 0


def allowed_modes(files: MachineFiles, path: str = ALLOWED) -> tuple[str, ...]:
    """Return the modes that root's list allows."""
    where = files.path(path)
    try:
        status = where.stat()
        text = where.read_text("utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read {path} ({error.strerror}): no mode is allowed") from None
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
        raise InvalidInput(f"{path} must be owned by root and writable by root only")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(validate_name(line, "power mode") for line in lines if line)


def _switch(mode: str, files: MachineFiles, allow: str) -> dict[str, Any]:
    validate_name(mode, "power mode")
    allowed = allowed_modes(files, allow)
    if mode not in allowed:
        raise ModeRefused(f"power mode {mode} is not in {allow}")
    with _switch_lock(files):
        switched = open_controller("nvpmodel", files, allowed).switch(mode)
    _log.info("power mode %s is in force after %.2f s", switched.mode, switched.seconds)
    return {"mode": switched.mode, "seconds": switched.seconds}


@contextmanager
def _switch_lock(files: MachineFiles) -> Iterator[None]:
    where = files.path(_LOCK)
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_request() -> str:
    """Read one line, with bounds on its length and on the time to wait for it."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([0], [], [], _REQUEST_TIMEOUT_S)
        chunk = os.read(0, _MAX_REQUEST_BYTES) if ready else b""
        if not chunk or len(line) + len(chunk) > _MAX_REQUEST_BYTES:
            raise InvalidInput("the request must be the name of one mode, on one line")
        line += chunk
    return line.decode(errors="replace").strip()


if __name__ == "__main__":
    sys.exit(main())
