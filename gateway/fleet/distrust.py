"""Workers that were proved to answer falsely, in a folder of the state directory.

Each has its own file, so that a command can readmit one while the gateway runs, and adds
others. Neither time nor a restart readmits a worker: a rogue agent would only have to wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

from synergai.domain import WorkerId
from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.names import validate_name
from synergai.runtime.atomic_file import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FOLDER: Final = "distrusted-workers"
MAX_DISTRUSTED: Final = 1000
"""Workers that are remembered. Without enrolment, an agent may take any number of ids."""
WATCH_INTERVAL_S: Final = 1.0

_log = logging.getLogger(__name__)


class Distrust:
    """The distrusted workers, with reasons.

    Args:
        state: state directory of the gateway.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._reasons = _read(self._folder)
        self._unwritten: dict[WorkerId, str] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def reason(self, worker_id: WorkerId) -> str:
        """Return why a worker is distrusted; empty if it is not."""
        return self._reasons.get(worker_id, "")

    def add(self, worker_id: WorkerId, reason: str) -> None:
        """Distrust a worker; `write` makes that durable."""
        self._reasons[worker_id] = reason
        self._unwritten[worker_id] = reason
        if len(self._reasons) > MAX_DISTRUSTED:
            oldest = next(iter(self._reasons))
            del self._reasons[oldest]
            self._unwritten[oldest] = ""

    async def write(self) -> None:
        """Write what has changed. What cannot be written holds until the next restart."""
        for worker_id, reason in list(self._unwritten.items()):
            try:
                await asyncio.to_thread(_write, self._folder, worker_id, reason)
            except OSError as error:
                _log.error("cannot record that worker %s is distrusted: %s", worker_id, error)
            else:
                self._unwritten.pop(worker_id, None)

    async def watch(
        self, on_readmitted: Callable[[set[WorkerId]], object], interval_s: float = WATCH_INTERVAL_S
    ) -> NoReturn:
        """Call back with the workers that a command has readmitted, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if readmitted := await self.look():
                on_readmitted(readmitted)

    async def look(self) -> set[WorkerId]:
        """Return the workers that have been readmitted since the last look."""
        before = self._reasons.keys() - self._unwritten.keys()
        if not before:
            return set()
        try:
            present = await asyncio.to_thread(_names, self._folder)
        except OSError as error:
            _log.warning("cannot read the distrusted workers, trying again: %s", error)
            return set()
        readmitted = before - present
        for worker_id in readmitted:
            self._reasons.pop(worker_id, None)  # it may have been evicted meanwhile
        return readmitted


def readmit(state: Path, worker_id: str) -> None:
    """Let a distrusted worker serve again.

    Raises:
        InvalidInput: the id is not one.
        NotFound: the worker is not distrusted.
        Unavailable: its file cannot be removed.
    """
    validate_name(worker_id, "worker id")
    try:
        _path(state / FOLDER, WorkerId(worker_id)).unlink()
    except FileNotFoundError:
        raise NotFound(
            f"worker {worker_id!r} is not distrusted in {state}: 'synergai workers' shows those "
            "that are, --state names the gateway's directory"
        ) from None
    except OSError as error:
        raise Unavailable(f"cannot readmit {worker_id!r}: {error}") from error


def _path(folder: Path, worker_id: WorkerId) -> Path:
    return folder / f"{worker_id}.json"


def _names(folder: Path) -> set[WorkerId]:
    return {WorkerId(path.stem) for path in folder.glob("*.json")}


def _read(folder: Path) -> dict[WorkerId, str]:
    """Read all files; one that is damaged still distrusts its worker."""
    reasons: dict[str, tuple[str, str]] = {}
    for path in folder.glob("*.json"):
        try:
            validate_name(path.stem, "worker id")
        except InvalidInput:
            continue
        at, reason = "", "it answered falsely"
        try:
            content = json.loads(path.read_text("utf-8"))
            at, reason = str(content["time"]), str(content["reason"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be read, its worker stays distrusted: %s", path, error)
        reasons[path.stem] = at, reason
    ordered = sorted(reasons, key=lambda name: reasons[name][0])
    return {WorkerId(name): reasons[name][1] for name in ordered}


def _write(folder: Path, worker_id: WorkerId, reason: str) -> None:
    """Write the file of a worker; without a reason, remove it."""
    if not reason:
        _path(folder, worker_id).unlink(missing_ok=True)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason}
    write_atomic(_path(folder, worker_id), json.dumps(content) + "\n", mode=0o600)
