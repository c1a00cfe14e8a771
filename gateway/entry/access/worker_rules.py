"""Rules for workers that join, and for the engines that they serve.

A worker proves its identity by its certificate, or by the secret of its enrolment. The row of the
access table that admits it also limits its engines. Rules may change while workers are connected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from msgspec import Struct

from gateway.entry.access.caller import matches_any
from gateway.entry.access.enrolments import EnrolledWorker, EnrolmentStore
from synergai.errors import PermissionDenied, SynergaiError, Unauthenticated
from synergai.names import split_version
from synergai.runtime.files import without_path
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.entry.access.table import AllowedWorkers
    from synergai.domain import Engine, EngineName

T = TypeVar("T")

_LOOK_S: Final = 0.5

_log = logging.getLogger(__name__)


class JoiningWorker(Struct, frozen=True, kw_only=True):
    """A worker that registers, and what it presents to prove its identity."""

    id: str
    worker_class: str
    certificate_names: frozenset[str] = frozenset()
    secret_sha256: bytes = b""


class WorkerRules:
    """The section ``[[workers]]`` of the access table, and the enrolled workers.

    Without the section from the start, every worker may join and serve all engines.

    Args:
        save: called after a worker was enrolled, before it is told so.
    """

    def __init__(
        self,
        state: Path,
        save: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._save = save
        self._clock = clock
        self._rows: tuple[AllowedWorkers, ...] | None = None
        self._enrolled: dict[str, EnrolledWorker] = {}
        self._store = EnrolmentStore(state)
        self._one_at_a_time = asyncio.Lock()
        self._running = TaskBag()

    @property
    def active(self) -> bool:
        """Whether the table says which workers may join."""
        return self._rows is not None

    async def load(self) -> None:
        """Read the enrolments, before the first rows are set."""
        await self._complete(self._read_enrolled)

    def set_rows(self, rows: tuple[AllowedWorkers, ...] | None) -> None:
        """Set the table's rows; connected workers are to be reviewed then.

        Once there were rows, None stands for no row: removing the last one from the file, which
        cannot leave an empty section, must not admit everyone.
        """
        self._rows = () if rows is None and self.active else rows

    async def close(self) -> None:
        """Wait for the current operation."""
        await self._running.wait()

    # --- joining ----------------------------------------------------------------------------

    async def admit(self, joining: JoiningWorker, token: str = "") -> bool:
        """Check that a worker may join; return whether its token has enrolled it now."""
        with without_path(f"worker {joining.id} cannot join now"):
            if self.active:
                await self.load()
            refusal = self.refusal(joining)
            if refusal is None:
                return False
            enrols = any(row.certificate is None for row in self._covering(joining))
            if not (token and joining.secret_sha256 and enrols):
                raise refusal
            await self._complete(partial(self._enrol, joining, token))
            await self._save()
        _log.info("worker %s of class %s is enrolled", joining.id, joining.worker_class)
        return True

    def refusal(self, joining: JoiningWorker) -> SynergaiError | None:
        """Return why a worker may not be connected; None if it may."""
        if self._rows is None or self._row(joining) is not None:
            return None
        who = f"worker {joining.id!r} of class {joining.worker_class!r}"
        rows = self._covering(joining)
        if not rows:
            return PermissionDenied(f"the gateway's access table has no row for {who}")
        proofs = [
            "an enrolment: create a token on the gateway's host with 'synergai gateway enroll', "
            "and start the agent with --enrolment-token-file"
            if row.certificate is None
            else f"a certificate for {row.certificate_name(joining.id, joining.worker_class)!r}"
            for row in rows
        ]
        return Unauthenticated(f"{who} needs {', or '.join(dict.fromkeys(proofs))}")

    def proof(self, joining: JoiningWorker) -> str:
        """Return what has proved a worker's identity: ``certificate``, ``secret`` or ``none``."""
        row = self._row(joining)
        if row is None:
            return "none"
        return "secret" if row.certificate is None else "certificate"

    # --- engines ----------------------------------------------------------------------------

    def engine_fault(self, joining: JoiningWorker, engine: Engine) -> str:
        """Return why an admitted worker may not serve an engine; empty if it may."""
        row = self._row(joining)
        if row is None:
            return ""
        if not matches_any(row.engines, split_version(engine.name)[0]):
            return "the access table does not allow this worker to serve it"
        digests = _digests(row, engine.name)
        # A pending or faulty engine has no digest, and is not served either.
        if digests is None or engine.fault:
            return ""
        others = sorted((engine.digests or {engine.digest}) - digests)
        if not others:
            return ""
        return f"the access table does not allow its file, of SHA-256 {others[0][:12]}…"

    def may_have(self, joining: JoiningWorker, engine: EngineName, model_sha256: str) -> bool:
        """Return whether an admitted worker may fetch and serve a model as an engine."""
        row = self._row(joining)
        if row is None:
            return True
        digests = _digests(row, engine)
        return matches_any(row.engines, split_version(engine)[0]) and (
            digests is None or model_sha256 in digests
        )

    # --- changes ----------------------------------------------------------------------------

    async def watch(self, on_change: Callable[[], object]) -> NoReturn:
        """Call back after the enrolments have changed, until cancelled."""
        seen = self._enrolled
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                if self.active and await self._complete(self._store.changed):
                    await self.load()
                # Not only by this task: they are read as well when a worker joins.
                if self._enrolled != seen:
                    seen = self._enrolled
                    on_change()
            except SynergaiError as error:
                _log.warning("cannot read the enrolled workers, trying again: %s", error)
            except Exception:  # noqa: BLE001 - a bug in one look must not end all others
                _log.exception("cannot apply the changed enrolments")

    # --- internals --------------------------------------------------------------------------

    def _covering(self, joining: JoiningWorker) -> list[AllowedWorkers]:
        return [row for row in self._rows or () if row.covers(joining.id, joining.worker_class)]

    def _row(self, joining: JoiningWorker) -> AllowedWorkers | None:
        """Return the first row that covers the worker and whose proof it has."""
        for row in self._covering(joining):
            if row.certificate is None:
                enrolled = self._enrolled.get(joining.id)
                if enrolled is not None and enrolled.is_proved_by(
                    joining.worker_class, joining.secret_sha256
                ):
                    return row
            elif (
                row.certificate_name(joining.id, joining.worker_class) in joining.certificate_names
            ):
                return row
        return None

    def _enrol(self, joining: JoiningWorker, token: str) -> None:
        self._store.enrol(
            token, joining.id, joining.worker_class, joining.secret_sha256, self._clock()
        )
        self._read_enrolled()

    def _read_enrolled(self) -> None:
        self._enrolled = {worker.id: worker for worker in self._store.workers()}

    async def _complete(self, operation: Callable[[], T]) -> T:
        """Run an operation of the store in a thread, one at a time, even if it is cancelled."""

        async def run() -> T:
            async with self._one_at_a_time:
                return await asyncio.to_thread(operation)

        return await self._running.complete(run())


def _digests(row: AllowedWorkers, engine: EngineName) -> frozenset[str] | None:
    """Return the digests that a row allows for a version of an engine; None allows any.

    Digests that are listed for ``NAME/N`` take precedence over the engine's.
    """
    if engine in row.digests:
        return row.digests[engine]
    return row.digests.get(split_version(engine)[0])
