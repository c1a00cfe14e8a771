"""Acceptance of many jobs with as many round trips as for one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from gateway.journal.operations import check_repeated, submission
from synergai.domain import JobId, JobState
from synergai.errors import SynergaiError, UploadUsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.journal.operations import Accept
    from gateway.journal.store import Connection

_Pair: TypeAlias = tuple[str, str]

_KEYS: Final = (
    "SELECT keys.tenant, key, submission, jobs.id FROM keys JOIN jobs ON jobs.sequence = keys.job "
    "WHERE (keys.tenant, key) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
)
_UPLOADS: Final = (
    "SELECT tenant, upload, id FROM jobs WHERE upload <> '' "
    "AND (tenant, upload) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
)
_INSERT: Final = (
    "WITH accepted AS ("
    "INSERT INTO jobs (id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, state) "
    "SELECT id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, state "
    "FROM unnest(?::text[], ?::text[], ?::bigint[], ?::float8[], ?::bigint[], ?::text[], "
    "?::float8[], ?::text[], ?::bigint[], ?::text[], ?::float8[], ?::integer[]) "
    "WITH ORDINALITY AS new (id, engine, queries, qos_s, priority, tenant, submitted_at, upload, "
    "max_failures, variant, min_accuracy, state, place) ORDER BY place RETURNING id, sequence) "
    "INSERT INTO keys (tenant, key, submission, job) SELECT tenant, key, submission, sequence "
    "FROM unnest(?::text[], ?::text[], ?::text[], ?::text[]) AS new (tenant, key, submission, id) "
    "JOIN accepted USING (id)"
)


def accept_all(connection: Connection, accepts: Sequence[Accept]) -> list[JobId | SynergaiError]:
    """Insert jobs; return the id or the error of each, as one after another would give."""
    keys: dict[_Pair, tuple[str, JobId]] = {}
    if asked := {(each.record.spec.tenant, each.key) for each in accepts if each.key}:
        rows = connection.execute(_KEYS, _columns(asked))
        keys = {(tenant, key): (text, JobId(job_id)) for tenant, key, text, job_id in rows}
    users: dict[_Pair, JobId] = {}
    if used := {_upload(each) for each in accepts if each.record.spec.upload_id}:
        rows = connection.execute(_UPLOADS, _columns(used))
        users = {(tenant, upload): JobId(job_id) for tenant, upload, job_id in rows}
    outcomes: list[JobId | SynergaiError] = []
    new: list[Accept] = []
    for each in accepts:
        pair, upload = (each.record.spec.tenant, each.key), _upload(each)
        try:
            if pair in keys:
                text, job_id = keys[pair]
                check_repeated(each.key, text, each.asked or each.record.spec, each.terms)
                outcomes.append(job_id)
                continue
            if upload in users:
                raise UploadUsed(each.record.spec.upload_id, users[upload])
        except SynergaiError as error:
            outcomes.append(error)
            continue
        outcomes.append(each.record.id)
        new.append(each)
        if each.key:
            keys[pair] = (_submission(each), each.record.id)
        if each.record.spec.upload_id:
            users[upload] = each.record.id
    _insert(connection, new)
    return outcomes


def _insert(connection: Connection, new: Sequence[Accept]) -> None:
    if not new:
        return
    keyed = [
        (each.record.spec.tenant, each.key, _submission(each), each.record.id)
        for each in new
        if each.key
    ]
    jobs = _columns([_job(each) for each in new])
    connection.execute(_INSERT, [*jobs, *(_columns(keyed) or [[]] * 4)])


def _job(accept: Accept) -> tuple[object, ...]:
    spec = accept.record.spec
    return (
        accept.record.id,
        spec.engine_version,
        spec.queries,
        None if math.isinf(spec.qos) else spec.qos,
        spec.priority,
        spec.tenant,
        accept.record.submitted_at,
        spec.upload_id,
        spec.max_failures,
        spec.variant,
        spec.min_accuracy,
        JobState.QUEUED.value,
    )


def _upload(accept: Accept) -> _Pair:
    return accept.record.spec.tenant, accept.record.spec.upload_id


def _submission(accept: Accept) -> str:
    given = submission(accept.asked or accept.record.spec, accept.terms)
    return msgspec.json.encode(given).decode()


def _columns(rows: Sequence[tuple[object, ...]] | set[_Pair]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
