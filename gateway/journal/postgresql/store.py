"""Journal in PostgreSQL, written by the leader."""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from functools import cache
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gateway.journal.operations import Accept, check_repeated
from gateway.journal.postgresql.session import DatabaseSession, where
from gateway.journal.store import Deposed, JournalBroken, Operation, Row, RuleViolated, is_disk_full
from synergai.domain import JobId
from synergai.errors import InternalError, SynergaiError, UploadUsed
from synergai.jobs import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from synergai.runtime.clock import Clock


class FetchedRows(deque["Row"]):
    """Rows of a statement; fetching removes them."""

    def fetchone(self) -> Row | None:
        return self.popleft() if self else None

    def fetchall(self) -> list[Row]:
        rows = list(self)
        self.clear()
        return rows


class PipelinedConnection:
    """Sends changes later, those of one statement together. The first one calls `begin` before.

    Which operation a refused change belongs to is not known then. With savepoints, changes are
    sent at once, and a refused one raises `RuleViolated` in its operation.
    """

    def __init__(self, session: DatabaseSession, begin: Callable[[], None]) -> None:
        self._session = session
        self._begin = begin
        self._statement = ""
        self._waiting: list[Sequence[Any]] = []
        self._savepoints = False

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> FetchedRows:
        if statement.startswith("SELECT"):
            self.flush()
            return FetchedRows(self._session.fetch(translated(statement), parameters))
        self.executemany(statement, [parameters])
        return FetchedRows()

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        if statement != self._statement:
            self.flush()
            self._statement = statement
        self._waiting += ([storable(value) for value in row] for row in rows)
        if self._savepoints:
            self._flush_or_refuse()

    def flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        if not self._session.in_transaction:
            self._begin()
        statement = translated(self._statement)
        if len(rows) == 1:
            self._session.fetch(statement, rows[0])
        else:
            self._session.fetch_each(statement, rows)

    def begin_savepoints(self) -> None:
        """Begin a transaction in which each change has a savepoint."""
        self._savepoints = True
        self._begin()

    def end(self) -> None:
        """Forget changes that wait, and use no savepoints further."""
        self._waiting = []
        self._savepoints = False

    def _flush_or_refuse(self) -> None:
        self._session.script("SAVEPOINT change")
        try:
            self.flush()
        except Exception as error:
            if not is_refusal(error):
                raise
            self._session.script("ROLLBACK TO change")
            raise RuleViolated(str(error)) from error


def is_refusal(error: Exception) -> bool:
    """Return whether a constraint or a trigger of the schema refused a change."""
    return str(getattr(error, "sqlstate", "")).startswith("23")


def storable(value: Any) -> Any:
    """Return a value as PostgreSQL can have it: its text has no NUL."""
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
        case list():
            return [storable(each) for each in value]
    return value


@cache
def translated(statement: str) -> str:
    """Return a statement of the operations in PostgreSQL's notation."""
    numbers = count(1)
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
    return numbered.replace("json_each(", "json_array_elements(")


_DISK_FULL: Final = "53100"
_PROBE: Final = (
    "INSERT INTO engines (name, description) SELECT 'probe', string_agg(md5(n::text), '') "
    "FROM generate_series(1, 131072) AS n"
)
"""Writes some megabytes, and is rolled back."""


class PostgresqlStore:
    """Database of the gateway that leads it, since an epoch began."""

    def __init__(self, session: DatabaseSession, clock: Clock, epoch: int, cluster: str) -> None:
        self.epoch = epoch
        self.cluster = cluster
        self.place = where(session.url)
        self._full = False
        self._session = session
        self._clock = clock
        self._connection = PipelinedConnection(session, self._begin)

    def execute(self, operations: Sequence[Operation]) -> list[object]:
        try:
            return self._execute(operations)
        except Exception as error:
            if self._session.ended or isinstance(error, TimeoutError):
                raise self._lost(error) from error
            if not is_refusal(error):
                raise
        self.roll_back()
        self._connection.begin_savepoints()
        return self._execute(operations)

    def roll_back(self) -> None:
        self._connection.end()
        with suppress(Exception):  # without a session there is none
            if self._session.in_transaction:
                self._session.script("ROLLBACK")

    def is_full(self, error: Exception) -> bool:
        """Return whether the disk of the server, or that of the results, is full."""
        if getattr(error, "sqlstate", "") == _DISK_FULL:
            self._full = True
        return self._full or is_disk_full(error)

    def has_room(self) -> bool:
        """Return whether the server can write again what it could not before."""
        if self._full:
            with suppress(Exception):  # without a session, the next operation says so
                self._session.script("BEGIN")
                self._session.script(_PROBE)
                self._full = False
            self.roll_back()
        return not self._full

    def close(self) -> None:
        """End the session, and with it the leadership."""
        self._session.close()

    def _lost(self, error: Exception) -> JournalBroken:
        self._session.abandon()
        return JournalBroken(
            f"the session with {where(self._session.url)} has ended: "
            f"{str(error) or 'no answer in time'}. Another gateway may lead now, so this one stops"
        )

    def _execute(self, operations: Sequence[Operation]) -> list[object]:
        outcomes: list[object] = []
        kinds = {isinstance(each, Accept) for each in operations}
        # Jobs alone need no transaction around their statement.
        if len(kinds) > 1 and not self._session.in_transaction:
            self._begin()
        for accepts, group in groupby(operations, lambda each: isinstance(each, Accept)):
            if accepts:
                outcomes += self._accept_all([*_accepts(group)])
            else:
                outcomes += [self._outcome(operation) for operation in group]
        self._connection.flush()
        if self._session.in_transaction:
            self._session.script("COMMIT")
        self._connection.end()
        return outcomes

    def _accept_all(self, accepts: Sequence[Accept]) -> list[JobId | SynergaiError]:
        self._connection.flush()
        now = self._clock.unix_now()
        outcomes = accept_all(self._session, self.epoch, now, accepts)
        if not any(isinstance(each, str) for each in outcomes):
            self._check_epoch()
        return outcomes

    def _outcome(self, operation: Operation) -> object:
        try:
            return operation(self._connection)
        except SynergaiError as error:  # raised before any change
            return error

    def _begin(self) -> None:
        """Begin a transaction, and prove the epoch: the next leader has to wait for its end."""
        proven = self._session.script(
            "BEGIN; UPDATE gateway SET commits = commits + 1, at = clock_timestamp(), "  # noqa: S608 - numbers only
            f"unix = {self._clock.unix_now()!r} WHERE epoch = {self.epoch}"
        )
        if proven == "UPDATE 0":
            self._check_epoch()

    def _check_epoch(self) -> None:
        [(epoch, leader)] = self._session.fetch("SELECT epoch, leader FROM gateway")
        if epoch != self.epoch:
            raise Deposed(leader)


def _accepts(operations: Iterable[Operation]) -> Iterable[Accept]:
    return (each for each in operations if isinstance(each, Accept))


_Pair: TypeAlias = tuple[str, str]

_INSERT: Final = (
    "WITH mine AS (UPDATE gateway SET commits = commits + 1, at = clock_timestamp(), unix = $1 "
    "WHERE epoch = $2 RETURNING epoch) "
    "INSERT INTO jobs (id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, key, submission, state) "
    "SELECT id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, key, submission, $3 "
    "FROM mine, unnest($4::text[], $5::text[], $6::bigint[], $7::float8[], $8::bigint[], "
    "$9::text[], $10::float8[], $11::text[], $12::bigint[], $13::text[], $14::float8[], "
    "$15::text[], $16::text[]) "
    "WITH ORDINALITY AS new (id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, key, submission, place) ORDER BY place "
    "ON CONFLICT DO NOTHING RETURNING id"
)
_KEYS: Final = (
    "SELECT tenant, key, submission, id FROM jobs WHERE key <> '' "
    "AND (tenant, key) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
)
_UPLOADS: Final = (
    "SELECT tenant, upload, id FROM jobs WHERE upload <> '' "
    "AND (tenant, upload) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
)


def accept_all(
    session: DatabaseSession, epoch: int, now: float, accepts: Sequence[Accept]
) -> list[JobId | SynergaiError]:
    """Insert jobs; return the id or the error of each, as one after another would give.

    None is inserted unless the epoch lasts.
    """
    columns = [storable(list(each)) for each in zip(*map(_job, accepts), strict=True)]
    inserted = session.fetch(_INSERT, (now, epoch, JobState.QUEUED.value, *columns))
    accepted = {job_id for (job_id,) in inserted}
    if len(accepted) == len(accepts):
        return [each.record.id for each in accepts]
    return _explain(session, accepts, accepted)


def _explain(
    session: DatabaseSession, accepts: Sequence[Accept], accepted: set[str]
) -> list[JobId | SynergaiError]:
    """Return the outcomes where some jobs were not inserted, for their keys and uploads."""
    keys = {
        (tenant, key): (text, JobId(job_id))
        for tenant, key, text, job_id in session.fetch(_KEYS, _pairs(map(_key, accepts)))
    }
    users = {
        (tenant, upload): JobId(job_id)
        for tenant, upload, job_id in session.fetch(_UPLOADS, _pairs(map(_upload, accepts)))
    }
    outcomes: list[JobId | SynergaiError] = []
    for each in accepts:
        spec = each.record.spec
        try:
            if each.record.id in accepted:
                outcomes.append(each.record.id)
            elif _key(each) in keys:
                text, job_id = keys[_key(each)]
                check_repeated(each.key, text, each.asked or spec, each.inputs_digest)
                outcomes.append(job_id)
            elif _upload(each) in users:
                outcomes.append(UploadUsed(spec.upload_id, users[_upload(each)]))
            else:
                outcomes.append(InternalError(f"job {each.record.id} cannot be recorded"))
        except SynergaiError as error:
            outcomes.append(error)
    return outcomes


def _job(accept: Accept) -> tuple[object, ...]:
    return (*accept.row(), accept.key, accept.submission())


def _key(accept: Accept) -> _Pair:
    return accept.record.spec.tenant, accept.key


def _upload(accept: Accept) -> _Pair:
    return accept.record.spec.tenant, accept.record.spec.upload_id


def _pairs(pairs: Iterable[_Pair]) -> list[list[str]]:
    return [list(column) for column in zip(*set(pairs), strict=True)]
