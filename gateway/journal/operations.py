"""Database operations of the journal, one function each, in SQL that every store knows.

Each runs inside a transaction of the writer thread. One that raises a `SynergaiError` has changed
nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import apsw
import msgspec

from gateway.fleet.descriptions import CommittedDescription
from gateway.journal.job_record import RecordedExecution, RecordedJob, UploadUse
from gateway.journal.store import Connection, Row, RuleViolated
from synergai.domain import AssignmentId, Configuration, EngineName, JobId, WorkerId
from synergai.errors import IdempotencyConflict, InternalError, UploadUsed
from synergai.jobs import JobSpec, JobState
from synergai.names import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


def submission(spec: JobSpec, inputs_digest: int | None) -> dict[str, object]:
    """Return what has to be the same under a key, by the names of the options."""
    given: dict[str, object] = {
        "engine": spec.engine,
        "version": spec.version,
        # The number of an upload's inputs may be left out, and says nothing.
        "queries": 0 if spec.upload_id else spec.queries,
        "inputs or outputs": (spec.upload_id, inputs_digest),
        "qos": spec.qos,
        "priority": spec.priority,
        "max_failures": spec.max_failures,
        "variant": spec.variant,
        "min_accuracy": spec.min_accuracy,
    }
    return msgspec.json.decode(msgspec.json.encode(given), type=dict[str, object])


def confirm(connection: Connection) -> None:
    """Read something, which fails unless the gateway still has the database."""
    connection.execute("SELECT 1")


# --- documents, which only gateways that share a database have ------------------------------------


def documents(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, content FROM documents").fetchall())


def change_documents(
    connection: Connection, changed: Mapping[str, str], removed: Iterable[str]
) -> None:
    """Add or replace documents, and remove others; only gateways that share a database do."""
    connection.executemany(
        "INSERT INTO documents (name, content) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET content = excluded.content",
        changed.items(),
    )
    connection.executemany("DELETE FROM documents WHERE name = ?", ((name,) for name in removed))


# --- jobs -----------------------------------------------------------------------------------------


def find_accepted(
    connection: Connection, spec: JobSpec, key: str, inputs_digest: int | None = None
) -> JobId | None:
    """Return the id of the job accepted under an idempotency key, if any; see `Journal.accept`."""
    known = connection.execute(
        "SELECT keys.submission, jobs.id FROM keys JOIN jobs ON jobs.sequence = keys.job "
        "WHERE keys.tenant = ? AND keys.key = ?",
        (spec.tenant, key),
    ).fetchone()
    if known is None:
        return None
    check_repeated(key, known[0], spec, inputs_digest)
    return JobId(known[1])


def check_repeated(key: str, known: str, spec: JobSpec, inputs_digest: int | None) -> None:
    """Check that a submission repeats the known one under its key."""
    before = msgspec.json.decode(known, type=dict[str, object])
    now = submission(spec, inputs_digest)
    if differing := [name for name in now if now[name] != before[name]]:
        raise IdempotencyConflict(key, differing)


@dataclass(frozen=True, slots=True)
class Accept:
    """Inserts a job unless its idempotency key is known; see `Journal.accept`.

    Called in SQLite only: PostgreSQL accepts many jobs at a time.
    """

    record: RecordedJob
    key: str = ""
    asked: JobSpec | None = None
    inputs_digest: int | None = None

    def __call__(self, connection: Connection) -> JobId:
        """Return the id of the job, or of the earlier one."""
        record, key, spec = self.record, self.key, self.record.spec
        asked = spec if self.asked is None else self.asked
        if key and (known := find_accepted(connection, asked, key, self.inputs_digest)) is not None:
            return known
        if spec.upload_id and (user := upload_user(connection, spec.tenant, spec.upload_id)):
            raise UploadUsed(spec.upload_id, user.id)
        connection.execute(
            "INSERT INTO jobs (state, id, engine, queries, qos_s, priority, tenant, submitted_at, "
            "upload, max_failures, variant, min_accuracy) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (JobState.QUEUED.value, *self.row()),
        )
        if key:
            connection.execute(
                "INSERT INTO keys (tenant, key, submission, job) "
                "VALUES (?, ?, ?, last_insert_rowid())",
                (spec.tenant, key, self.submission()),
            )
        return record.id

    def row(self) -> tuple[object, ...]:
        """Return the columns of the job from its id to its accuracy, without its state."""
        record, spec = self.record, self.record.spec
        return (
            record.id,
            spec.engine_version,
            spec.queries,
            None if math.isinf(spec.qos) else spec.qos,
            spec.priority,
            spec.tenant,
            record.submitted_at,
            spec.upload_id,
            spec.max_failures,
            spec.variant,
            spec.min_accuracy,
        )

    def submission(self) -> str:
        """Return what has to be the same under the key, as JSON; empty without a key."""
        if not self.key:
            return ""
        return msgspec.json.encode(
            submission(self.asked or self.record.spec, self.inputs_digest)
        ).decode()


def record_dispatch(connection: Connection, record: RecordedJob) -> None:
    connection.execute(
        "UPDATE jobs SET state = ?, dispatched_at = ?, estimated_s = ? WHERE id = ? AND state <= ?",
        (
            JobState.RUNNING.value,
            record.dispatched_at,
            record.estimated_s,
            record.id,
            JobState.RUNNING.value,
        ),
    )


def record_execution(
    connection: Connection, job_id: JobId, assignment_id: AssignmentId, execution: RecordedExecution
) -> None:
    """Record the completed queries of an assignment; `execution` covers it from its start.

    Nothing is changed if a query is already recorded under another assignment or beyond the job's
    range, or if the job has ended.
    """
    configuration = execution.configuration
    try:
        connection.execute(
            "INSERT INTO executions SELECT ?, sequence, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM jobs "
            "WHERE id = ? ON CONFLICT (assignment) DO UPDATE SET stop = excluded.stop, "
            "seconds = excluded.seconds, labelled = excluded.labelled, correct = excluded.correct, "
            "failures = excluded.failures WHERE excluded.stop > executions.stop",
            (
                assignment_id,
                execution.first,
                execution.stop,
                execution.worker_id,
                configuration.threads,
                configuration.power_mode,
                configuration.execution_provider,
                execution.seconds,
                execution.labelled,
                execution.correct,
                execution.failures,
                configuration.variant,
                job_id,
            ),
        )
    except (apsw.ConstraintError, RuleViolated) as error:
        raise InternalError(f"job {job_id}, assignment {assignment_id}: {error}") from error


def record_end(connection: Connection, record: RecordedJob) -> None:
    """Record the end of the job; an earlier end is kept."""
    connection.execute(
        "UPDATE jobs SET (state, finished_at, reason, stages) = (?, ?, ?, ?) WHERE id = ? "
        "AND state <= ?",
        (
            record.state.value,
            record.finished_at,
            record.reason,
            " ".join(record.stages),
            record.id,
            JobState.RUNNING.value,
        ),
    )


def purge(connection: Connection, kept: int) -> None:
    """Delete all ended jobs except the newest `kept`, with their keys and executions."""
    connection.execute(
        "DELETE FROM jobs WHERE state > 2 AND sequence <= "
        "(SELECT sequence FROM jobs WHERE state > 2 ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
        (kept,),
    )


def add_engines(connection: Connection, engines: Collection[EngineName]) -> None:
    """Record engine names, forgotten or not, so that they stay known without a worker."""
    _of_each(connection, "INSERT INTO engines (name) VALUES (?) ON CONFLICT DO NOTHING", engines)
    _of_each(connection, "DELETE FROM forgotten_engines WHERE name = ?", engines)


def remove_engines(connection: Connection, engines: Collection[EngineName]) -> None:
    _of_each(connection, "DELETE FROM engines WHERE name = ?", engines)


def forget_engines(connection: Connection, engines: Collection[EngineName]) -> None:
    """Remove engine names, and record that they are forgotten although they have profiles."""
    remove_engines(connection, engines)
    _of_each(connection, "INSERT INTO forgotten_engines VALUES (?) ON CONFLICT DO NOTHING", engines)


def _of_each(connection: Connection, statement: str, engines: Collection[EngineName]) -> None:
    connection.executemany(statement, [(engine,) for engine in engines])


def forgotten_engines(connection: Connection) -> frozenset[EngineName]:
    return _names(connection, "SELECT name FROM forgotten_engines")


def engines(connection: Connection) -> frozenset[EngineName]:
    return _names(connection, "SELECT name FROM engines")


def set_unloaded(connection: Connection, engine: EngineName, *, unloaded: bool) -> None:
    connection.execute(
        "INSERT INTO engines (name, unloaded) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET unloaded = excluded.unloaded",
        (engine, int(unloaded)),
    )


def unloaded_engines(connection: Connection) -> frozenset[EngineName]:
    return _names(connection, "SELECT name FROM engines WHERE unloaded = 1")


def _names(connection: Connection, query: str) -> frozenset[EngineName]:
    return frozenset(EngineName(name) for (name,) in connection.execute(query))


def set_description(
    connection: Connection, engine: EngineName, committed: CommittedDescription | None
) -> None:
    """Set the committed description of an engine; None removes it."""
    text = "" if committed is None else msgspec.json.encode(committed).decode()
    connection.execute(
        "INSERT INTO engines (name, description) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET description = excluded.description",
        (engine, text),
    )


def descriptions(connection: Connection) -> dict[EngineName, CommittedDescription]:
    rows: list[Row] = connection.execute(
        "SELECT name, description FROM engines WHERE description <> ''"
    ).fetchall()
    return {
        EngineName(name): msgspec.json.decode(text, type=CommittedDescription)
        for name, text in rows
    }


_JOB: Final = (
    "SELECT sequence, id, engine, queries, qos_s, priority, tenant, state, submitted_at, "
    "dispatched_at, finished_at, estimated_s, reason, stages, upload, max_failures, variant, "
    "min_accuracy FROM jobs "
)
_ENDED: Final = "WHERE state > 2 AND ((1 << state) & ?) <> 0 "
_IN_SCOPE: Final = "AND (engine, tenant) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?)) "
_NEWEST: Final = "ORDER BY sequence DESC LIMIT ?"
ENDED_IN_SCOPE: Final = _JOB + _ENDED + _IN_SCOPE + _NEWEST
"""Parameters: the states as bits, a JSON array of pairs of engine and tenant, and the limit."""
_NEXT_OWNER: Final = (
    "SELECT engine, tenant FROM jobs WHERE state > 2 AND (engine, tenant) > (?, ?) "
    "ORDER BY engine, tenant LIMIT 1"
)


def find_job(connection: Connection, job_id: JobId) -> RecordedJob | None:
    """Return the job as recorded; None if it is unknown."""
    row = connection.execute(_JOB + "WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else _to_records(connection, [row])[0]


def unfinished_jobs(connection: Connection) -> list[RecordedJob]:
    """Return the jobs that have not ended, in order of acceptance."""
    rows = connection.execute(_JOB + "WHERE state <= 2 ORDER BY sequence").fetchall()
    return _to_records(connection, rows)


def upload_user(connection: Connection, tenant: str, upload_id: str) -> RecordedJob | None:
    """Return the job over an upload of a tenant, if there is one."""
    row = connection.execute(
        _JOB + "WHERE tenant = ? AND upload = ? AND upload <> ''", (tenant, upload_id)
    ).fetchone()
    return None if row is None else _to_records(connection, [row])[0]


def jobs_over_uploads(connection: Connection) -> list[UploadUse]:
    """Return all jobs over uploads, those that ended first in order of their ends."""
    rows: list[Row] = connection.execute(
        "SELECT id, tenant, upload, finished_at FROM jobs WHERE upload <> '' "
        "ORDER BY finished_at IS NULL, finished_at"
    ).fetchall()
    return [UploadUse(JobId(row[0]), *row[1:]) for row in rows]


def ended_jobs(
    connection: Connection,
    states: Collection[JobState],
    limit: int,
    wanted: Callable[[str, str], bool] = lambda _engine, _tenant: True,
) -> list[RecordedJob]:
    """Return the newest jobs that ended in one of `states`, of wanted engines and tenants."""
    bits = sum(1 << state.value for state in states)
    rows = connection.execute(_JOB + _ENDED + _NEWEST, (bits, limit)).fetchall()
    records = _to_records(connection, rows)
    if all(wanted(record.spec.engine, record.spec.tenant) for record in records):
        return records
    # Few pairs stand for many jobs; asking about each job would hold up the writer.
    scope = [pair for pair in _owners(connection) if wanted(*pair)]
    pairs = msgspec.json.encode(scope).decode()
    rows = connection.execute(ENDED_IN_SCOPE, (bits, pairs, limit)).fetchall()
    return _to_records(connection, rows)


def _owners(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield each pair of engine and tenant with ended jobs.

    SQLite's DISTINCT would read the whole index; this reads one entry for each pair.
    """
    last: Row = ("", "")
    while owner := connection.execute(_NEXT_OWNER, last).fetchone():
        last = engine, tenant = owner
        yield engine, tenant


_EXECUTIONS: Final = (
    "SELECT job, worker, threads, power_mode, execution_provider, first, stop, seconds, labelled, "
    "correct, failures, variant FROM executions "
    "WHERE job IN (SELECT CAST(value ->> 0 AS BIGINT) FROM json_each(?)) ORDER BY assignment"
)


def _to_records(connection: Connection, rows: Sequence[Row]) -> list[RecordedJob]:
    """Return jobs with their executions, which one statement finds for all."""
    executions: dict[int, list[RecordedExecution]] = {}
    jobs = msgspec.json.encode([row[:1] for row in rows]).decode()
    for job, *columns in connection.execute(_EXECUTIONS, (jobs,)):
        executions.setdefault(job, []).append(_to_execution(columns))
    return [_to_record(row, executions.get(row[0], ())) for row in rows]


def _to_execution(columns: list[Any]) -> RecordedExecution:
    worker, threads, power_mode, provider, first, stop, seconds, *rest = columns
    labelled, correct, failures, variant = rest
    return RecordedExecution(
        worker_id=WorkerId(worker),
        configuration=Configuration(threads, power_mode, provider, variant),
        first=first,
        count=stop - first,
        seconds=seconds,
        labelled=labelled,
        correct=correct,
        failures=failures,
    )


def _to_record(row: Row, executions: Iterable[RecordedExecution]) -> RecordedJob:
    (_, job_id, engine, queries, qos_s, priority, tenant, state, *rest) = row
    submitted_at, dispatched_at, finished_at, estimated_s, *rest = rest
    reason, stages, upload, max_failures, variant, min_accuracy = rest
    name, version = split_version(engine)
    return RecordedJob(
        id=JobId(job_id),
        spec=JobSpec(
            engine=EngineName(name),
            version=version,
            queries=queries,
            qos=math.inf if qos_s is None else qos_s,
            priority=priority,
            tenant=tenant,
            upload_id=upload,
            max_failures=max_failures,
            variant=variant,
            min_accuracy=min_accuracy,
        ),
        state=JobState(state),
        submitted_at=submitted_at,
        dispatched_at=dispatched_at,
        finished_at=finished_at,
        estimated_s=estimated_s,
        executions=tuple(executions),
        reason=reason,
        stages=tuple(map(EngineName, stages.split())),
    )
