"""Proof of the worker's identity for a gateway that requires enrolment.

The agent chooses a secret and stores it before it presents an enrolment token with it. A reply that
is lost thus costs nothing: the gateway knows the secret already, and the agent presents it again.

The secret of a new token is stored next to the old one, and replaces it only once the gateway
accepts it. Until then both are presented in turn, so a token that is not valid costs nothing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from synergai.errors import InvalidInput
from synergai.runtime.files import StateFile

if TYPE_CHECKING:
    from pathlib import Path

SECRET_FILE: Final = "worker-secret.json"  # noqa: S105  # a file's name

_log = logging.getLogger(__name__)


class Credentials(NamedTuple):
    """Secret and enrolment token to present; empty for none."""

    secret: str = ""
    token: str = ""


NO_CREDENTIALS: Final = Credentials()


class _Secret(Struct, frozen=True):
    """A secret, and the hash of the token that it was made for."""

    secret: str
    token_sha256: str


class _Stored(_Secret, frozen=True):
    """Content of the file: the secret, and the next one that will replace it."""

    candidate: _Secret | None = None


class WorkerIdentity:
    """The worker's secret, in its state directory. The methods block on files.

    The file with the token may be removed after the enrolment, or replaced to enrol again.
    """

    def __init__(self, state: Path, token_file: Path | None = None, token: str = "") -> None:
        self._file = StateFile(
            state / SECRET_FILE, _Stored, "Remove it, and enrol the worker again"
        )
        self._token_file = token_file
        self._token = token
        self._tries_candidate = False

    @property
    def enrols(self) -> bool:
        return bool(self._token or self._token_file)

    def check(self) -> None:
        """Check, before anything is started, that there is something to present."""
        self._read_token(required=self._file.read() is None)

    def read(self) -> Credentials:
        """Return the credentials to present, with a new secret if there is only a token."""
        stored = self._file.read()
        token = self._read_token(required=stored is None)
        if stored is None:
            if not token:
                return NO_CREDENTIALS
            stored = _Stored(*_new_secret(token))
            self._file.write(stored)
        chosen: _Secret = stored
        if self._tries_candidate and stored.candidate is not None:
            chosen = stored.candidate
        return Credentials(chosen.secret, token if _hash(token) == chosen.token_sha256 else "")

    def refused(self) -> None:
        """Present the secret of a new token next, if there is one; the old one after that."""
        if self._tries_candidate:
            self._tries_candidate = False
            return
        stored = self._file.read()
        token = self._read_token(required=False)
        if not token or stored is None or _hash(token) == stored.token_sha256:
            return
        if stored.candidate is None or stored.candidate.token_sha256 != _hash(token):
            _log.info("enrolling again with a new token")
            candidate = _Secret(*_new_secret(token))
            self._file.write(_Stored(stored.secret, stored.token_sha256, candidate))
        self._tries_candidate = True

    def accepted(self) -> None:
        """Keep only the secret that was presented, as the gateway has accepted it."""
        stored = self._file.read() if self._tries_candidate else None
        if stored is not None and stored.candidate is not None:
            self._file.write(_Stored(stored.candidate.secret, stored.candidate.token_sha256))
        self._tries_candidate = False

    def _read_token(self, *, required: bool) -> str:
        if self._token_file is None:
            return self._token
        try:
            token = self._token_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if not required:
                return ""
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InvalidInput(
                f"--enrolment-token-file {self._token_file} cannot be read: {reason}"
            ) from None
        if required and not token:
            raise InvalidInput(f"--enrolment-token-file {self._token_file} is empty")
        return token


def _new_secret(token: str) -> tuple[str, str]:
    return secrets.token_urlsafe(32), _hash(token)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
