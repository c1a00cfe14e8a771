"""``synergai-power``: the one part that needs root's rights, and the least that can have them.

It is started anew for every connection to its socket (systemd, ``Accept=yes``), reads the name of
one mode, puts it in force if it is on the list that root wrote, answers with one line of JSON,
and ends. It opens no port, reads no other input, and imports neither gRPC nor a model.
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

from synergai.domain import validate_name
from synergai.errors import InvalidInput, SynergaiError
from worker_agent.power.controller import ModeRefused, SwitchFailed
from worker_agent.power.files import Files
from worker_agent.power.selection import AUTO, CONTROLLERS, open_controller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALLOWED: Final = "/etc/synergai/power-modes"
_LOCK: Final = "/run/synergai-power.lock"
_REQUEST_BYTES: Final = 256
_REQUEST_S: Final = 5.0

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer one request on standard input, or carry out the one on the command line."""
    parser = argparse.ArgumentParser(
        prog="synergai-power",
        description="Put one of the allowed power modes in force, and verify it.",
        epilog="Example: synergai-power MODE_15W_4CORE",
    )
    parser.add_argument("mode", nargs="?", help="read from standard input if it is missing")
    parser.add_argument("--allow", default=ALLOWED, metavar="FILE", help="one mode per line")
    parser.add_argument("--controller", default=AUTO, choices=[AUTO, *CONTROLLERS.names()])
    parser.add_argument("--root", type=Path, default=Path("/"), help="folder instead of /")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    files = Files(options.root)
    try:
        mode = _read_request() if options.mode is None else str(options.mode)
        answer = _switch(mode, options.controller, files, options.allow)
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


def allowed_modes(files: Files, path: str = ALLOWED) -> tuple[str, ...]:
    """The modes that root allows; none where there is no list.

    Raises:
        InvalidInput: others than root could have written it, or a line is no name.
    """
    where = files.path(path)
    try:
        status = where.stat()
        text = where.read_text("utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}): no mode is allowed"
        ) from None
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
        raise InvalidInput(f"{path} must belong to root, and nobody else may write it")
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(validate_name(line, "power mode") for line in lines if line)


def _switch(mode: str, name: str, files: Files, allow: str) -> dict[str, Any]:
    validate_name(mode, "power mode")
    allowed = allowed_modes(files, allow)
    if mode not in allowed:
        raise ModeRefused(f"power mode {mode} is not in {allow}")
    with _alone(files):
        switched = open_controller(name, files, allowed).switch(mode)
    _log.info("power mode %s is in force after %.2f s", switched.mode, switched.seconds)
    return {"mode": switched.mode, "seconds": switched.seconds}


@contextmanager
def _alone(files: Files) -> Iterator[None]:
    """Wait until no other helper is switching."""
    where = files.path(_LOCK)
    where.parent.mkdir(parents=True, exist_ok=True)
    with where.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_request() -> str:
    """One line, soon: nobody keeps root's process waiting."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([0], [], [], _REQUEST_S)
        more = os.read(0, _REQUEST_BYTES) if ready else b""
        if not more or len(line) + len(more) > _REQUEST_BYTES:
            raise InvalidInput("the request must be the name of one mode, on one line")
        line += more
    return line.decode(errors="replace").strip()


if __name__ == "__main__":
    sys.exit(main())
