"""Enrolled workers and enrolment tokens, in a file of the gateway's state directory.

The gateway and its commands use the file at the same time. It holds hashes only: tokens and
secrets are random, so that a plain SHA-256 cannot be inverted.

An agent chooses its secret and stores it before it presents a token. A reply that is lost thus
leaves an agent that is enrolled and knows its secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from synergai.errors import NotFound, Unauthenticated
from synergai.runtime.files import StateFile

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "workers.json"
_KEPT_S: Final = 7 * 86_400.0
"""Time after its expiry at which a token is forgotten; until then, its use is refused by name."""


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
            state / FILE,
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
    """Return the SHA-256 of a token or secret."""
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
