"""Acceptance of many jobs with one statement, which is a transaction of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from gateway.journal.operations import check_repeated, submission
from gateway.journal.postgresql.connection import storable
from synergai.domain import JobId, JobState
from synergai.errors import InternalError, SynergaiError, UploadUsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.journal.operations import Accept
    from gateway.journal.postgresql.session import DatabaseSession

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
                check_repeated(each.key, text, each.asked or spec, each.terms)
                outcomes.append(job_id)
            elif _upload(each) in users:
                outcomes.append(UploadUsed(spec.upload_id, users[_upload(each)]))
            else:
                outcomes.append(InternalError(f"job {each.record.id} cannot be recorded"))
        except SynergaiError as error:
            outcomes.append(error)
    return outcomes


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
        accept.key,
        _submission(accept) if accept.key else "",
    )


def _key(accept: Accept) -> _Pair:
    return accept.record.spec.tenant, accept.key


def _upload(accept: Accept) -> _Pair:
    return accept.record.spec.tenant, accept.record.spec.upload_id


def _submission(accept: Accept) -> str:
    given = submission(accept.asked or accept.record.spec, accept.terms)
    return msgspec.json.encode(given).decode()


def _pairs(pairs: Iterable[_Pair]) -> list[list[str]]:
    return [list(column) for column in zip(*set(pairs), strict=True)]
