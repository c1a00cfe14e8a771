"""Workers that may join, and the engines that they may serve.

A worker proves its identity by its certificate, or by the secret of its enrolment. The row of the
access table that admits it also limits its engines. Rules may change while workers are connected.

Enrolled workers and enrolment tokens are in a file of the gateway's state directory, which gateway
and commands use at the same time. It holds hashes only: tokens and secrets are random, so that a
plain SHA-256 cannot be inverted. An agent chooses its secret and stores it before it presents a
token. A reply that is lost thus leaves an agent that is enrolled and knows its secret.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.entry.access.caller import matches_any
from synergai.errors import NotFound, PermissionDenied, SynergaiError, Unauthenticated
from synergai.names import split_version
from synergai.runtime.files import StateFile, without_path
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from gateway.entry.access.table import AllowedWorkers
    from synergai.domain import Engine, EngineName

ENROLMENTS_FILE: Final = "workers.json"
_KEPT_S: Final = 7 * 86_400.0
"""Time after its expiry at which a token is forgotten; until then, its use is refused by name."""
T = TypeVar("T")

_LOOK_S: Final = 0.5

_log = logging.getLogger(__name__)


class EnrolledWorker(Struct, frozen=True, kw_only=True):
    """A worker that has exchanged a token for a secret. Times are Unix times."""

    id: str
    worker_class: str
    secret_sha256: bytes
    enrolled_at: float
    revoked_at: float | None

    def is_proved_by(self, worker_class: str, secret_sha256: bytes) -> bool:
        """Return whether class and secret prove this worker, which is not revoked."""
        return (
            self.revoked_at is None
            and self.worker_class == worker_class
            and hmac.compare_digest(self.secret_sha256, secret_sha256)
        )


class _Token(Struct, frozen=True, kw_only=True):
    """An enrolment token; `worker_id` and `worker_class` are empty for any."""

    worker_id: str
    worker_class: str
    expires_at: float
    used_by: str = ""


class _Enrolments(Struct):
    """Content of the file: tokens by the SHA-256 of their text, and workers by id."""

    tokens: dict[str, _Token] = field(default_factory=dict)
    workers: dict[str, EnrolledWorker] = field(default_factory=dict)


class EnrolmentStore:
    """Enrolled workers and tokens."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(
            state / ENROLMENTS_FILE,
            _Enrolments,
            "Stop the gateway and replace the file by a copy; or move it away, and enrol the "
            "workers again with 'synergai gateway enroll'",
        )

    # --- tokens -----------------------------------------------------------------------------

    def issue(self, worker_id: str, worker_class: str, expires_at: float, now: float) -> str:
        """Return a new enrolment token; only its hash is stored.

        Without a worker's id it is for any that is not known, without a class for any class.
        """
        text = secrets.token_urlsafe(32)
        token = _Token(worker_id=worker_id, worker_class=worker_class, expires_at=expires_at)
        with self._file.locked():
            content = self._read()
            kept = {
                key: each
                for key, each in content.tokens.items()
                if each.expires_at >= now - _KEPT_S
            }
            content.tokens = {**kept, sha256(text).hex(): token}
            self._file.write(content)
        return text

    def enrol(
        self, token: str, worker_id: str, worker_class: str, secret_sha256: bytes, now: float
    ) -> None:
        """Use a token for a worker, and record its secret, at once."""
        key = sha256(token).hex()
        with self._file.locked():
            content = self._read()
            found = content.tokens.get(key)
            known = content.workers.get(worker_id)
            if problem := _problem(found, worker_id, worker_class, now, known):
                raise Unauthenticated(
                    f"{problem}; create a token on the gateway's host with 'synergai gateway "
                    f"enroll --worker-id {worker_id}'"
                )
            content.tokens[key] = replace(content.tokens[key], used_by=worker_id)
            content.workers[worker_id] = EnrolledWorker(
                id=worker_id,
                worker_class=worker_class,
                secret_sha256=secret_sha256,
                enrolled_at=now,
                revoked_at=None,
            )
            self._file.write(content)

    # --- workers ----------------------------------------------------------------------------

    def workers(self) -> list[EnrolledWorker]:
        """Return all workers, revoked ones included, by id."""
        workers = self._read().workers
        return [workers[worker_id] for worker_id in sorted(workers)]

    def changed(self) -> bool:
        """Return whether a command has changed the enrolments since they were last read."""
        return self._file.changed()

    def revoke(self, worker_id: str, now: float) -> None:
        """Revoke a worker's secret; idempotent."""
        with self._file.locked():
            content = self._read()
            worker = content.workers.get(worker_id)
            if worker is None:
                raise NotFound(f"there is no enrolled worker {worker_id!r}")
            if worker.revoked_at is None:
                content.workers[worker_id] = replace(worker, revoked_at=now)
                self._file.write(content)

    def _read(self) -> _Enrolments:
        return self._file.read() or _Enrolments()


def sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _problem(
    token: _Token | None,
    worker_id: str,
    worker_class: str,
    now: float,
    known: EnrolledWorker | None,
) -> str:
    if token is None:
        return "the enrolment token is unknown to this gateway's --state"
    if token.used_by == worker_id and known is not None and known.revoked_at is not None:
        return f"worker {worker_id!r} has been revoked"
    if token.used_by:
        return f"the enrolment token was used by worker {token.used_by!r}"
    if token.expires_at <= now:
        return "the enrolment token has expired"
    if token.worker_id not in ("", worker_id):
        return f"the enrolment token is for worker {token.worker_id!r}"
    if token.worker_class not in ("", worker_class):
        return f"the enrolment token is for class {token.worker_class!r}"
    if known and not token.worker_id:
        return f"worker {worker_id!r} was enrolled before, which needs a token for this id"
    return ""


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
        # A pending or faulty engine need not have a digest, and is not served either.
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
