"""Workers that may join, and the engines that they may serve.

A worker proves its identity by its certificate or its token. The row of the access table that
admits it also limits its engines. Rules may change while workers are connected.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway.entry.access.caller import matches_any
from synergai.errors import PermissionDenied, SynergaiError, Unauthenticated
from synergai.names import split_version

if TYPE_CHECKING:
    from gateway.entry.access.table import AllowedWorkers
    from synergai.domain import Engine, EngineName


class JoiningWorker(Struct, frozen=True, kw_only=True):
    """A worker that registers, and what it presents to prove its identity.

    Attributes:
        token_sha256: SHA-256 of its token, in hexadecimal digits; empty without one.
    """

    id: str
    worker_class: str
    certificate_names: frozenset[str] = frozenset()
    token_sha256: str = ""


class WorkerRules:
    """The section ``[[workers]]`` of the access table.

    Without the section from the start, every worker may join and serve all engines.
    """

    def __init__(self) -> None:
        self._rows: tuple[AllowedWorkers, ...] | None = None

    def set_rows(self, rows: tuple[AllowedWorkers, ...] | None) -> None:
        """Set the table's rows; connected workers are to be reviewed then.

        Once there were rows, None stands for no row: removing the last one from the file, which
        cannot leave an empty section, must not admit everyone.
        """
        self._rows = () if rows is None and self._rows is not None else rows

    # --- joining ----------------------------------------------------------------------------

    def refusal(self, joining: JoiningWorker) -> SynergaiError | None:
        """Return why a worker may not be connected; None if it may."""
        if self._rows is None or self._row(joining) is not None:
            return None
        who = f"worker {joining.id!r} of class {joining.worker_class!r}"
        rows = self._covering(joining)
        if not rows:
            return PermissionDenied(f"the gateway's access table has no row for {who}")
        needed = dict.fromkeys(_needed(row, joining) for row in rows)
        return Unauthenticated(f"{who} needs {', or '.join(needed)}")

    def proof(self, joining: JoiningWorker) -> str:
        """Return what has proved a worker's identity: ``certificate``, ``token`` or ``none``."""
        row = self._row(joining)
        if row is None:
            return "none"
        return "token" if row.certificate is None else "certificate"

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

    # --- internals --------------------------------------------------------------------------

    def _covering(self, joining: JoiningWorker) -> list[AllowedWorkers]:
        rows = self._rows or ()
        # A worker with a row of its own is not replaced by one that knows the token of others.
        has_own = any(row.id == joining.id for row in rows)
        return [
            row
            for row in rows
            if row.covers(joining.id, joining.worker_class) and not (has_own and row.shares_token)
        ]

    def _row(self, joining: JoiningWorker) -> AllowedWorkers | None:
        """Return the first row that covers the worker and whose proof it has."""
        return next((row for row in self._covering(joining) if _is_proved(row, joining)), None)


def _is_proved(row: AllowedWorkers, joining: JoiningWorker) -> bool:
    """Return whether a worker presents what a row that covers it requires."""
    if row.token_sha256 is not None:
        return hmac.compare_digest(row.token_sha256, joining.token_sha256)
    return row.certificate_name(joining.id, joining.worker_class) in joining.certificate_names


def _needed(row: AllowedWorkers, joining: JoiningWorker) -> str:
    """Return what a worker lacks for a row that covers it."""
    if row.token_sha256 is None:
        return f"a certificate for {row.certificate_name(joining.id, joining.worker_class)!r}"
    return (
        f"{'another' if joining.token_sha256 else 'a'} token: make one, and its row of the access "
        f"table, with 'synergai access token {joining.id} --worker --worker-class "
        f"{joining.worker_class}', and start the agent with --token-file"
    )


def _digests(row: AllowedWorkers, engine: EngineName) -> frozenset[str] | None:
    """Return the digests that a row allows for a version of an engine; None allows any.

    Digests that are listed for ``NAME/N`` take precedence over the engine's.
    """
    if engine in row.digests:
        return row.digests[engine]
    return row.digests.get(split_version(engine)[0])
