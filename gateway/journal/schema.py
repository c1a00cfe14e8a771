"""Schema of the journal's database."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from synergai.runtime.clock import ClockReading, time_between

if TYPE_CHECKING:
    import apsw

_log = logging.getLogger(__name__)

_NOTABLE_S: Final = 1.0
VERSION: Final = 2
APPLICATION_ID: Final = 0x53594E41  # "SYNA", to recognise files of other programs

_TABLES: Final = """
CREATE TABLE gateway (
  epoch      INTEGER NOT NULL,
  commits    INTEGER NOT NULL DEFAULT 0,
  boot_id    TEXT NOT NULL DEFAULT '',
  since_boot REAL NOT NULL DEFAULT 0,
  unix       REAL NOT NULL DEFAULT 0
) STRICT;
INSERT INTO gateway (epoch) VALUES (0);

CREATE TABLE engines (
  name        TEXT PRIMARY KEY,
  unloaded    INTEGER NOT NULL DEFAULT 0 CHECK (unloaded IN (0, 1)),
  description TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
  sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
  id            TEXT NOT NULL UNIQUE,
  engine        TEXT NOT NULL,
  queries       INTEGER NOT NULL CHECK (queries > 0),
  qos_s         REAL,
  priority      INTEGER NOT NULL,
  tenant        TEXT NOT NULL,
  submitted_at  REAL NOT NULL,
  dispatched_at REAL,
  estimated_s   REAL,
  state         INTEGER NOT NULL CHECK (state BETWEEN 1 AND 7),
  finished_at   REAL,
  reason        TEXT NOT NULL DEFAULT '',
  stages        TEXT NOT NULL DEFAULT '',
  upload        TEXT NOT NULL DEFAULT '',
  max_failures  INTEGER,
  variant       TEXT NOT NULL DEFAULT '',
  min_accuracy  REAL NOT NULL DEFAULT 0,
  CHECK ((state > 2) = (finished_at IS NOT NULL))
) STRICT;
CREATE INDEX jobs_unfinished ON jobs (sequence) WHERE state <= 2;
CREATE INDEX jobs_ended ON jobs (sequence) WHERE state > 2;
CREATE INDEX jobs_by_owner ON jobs (engine, tenant, sequence, state) WHERE state > 2;
CREATE UNIQUE INDEX jobs_by_upload ON jobs (tenant, upload) WHERE upload <> '';

CREATE TABLE keys (
  tenant     TEXT NOT NULL,
  key        TEXT NOT NULL,
  submission TEXT NOT NULL,
  job        INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_job ON keys (job);

CREATE TABLE executions (
  assignment         INTEGER PRIMARY KEY,
  job                INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
  first              INTEGER NOT NULL CHECK (first >= 0),
  stop               INTEGER NOT NULL CHECK (stop > first),
  worker             TEXT NOT NULL,
  threads            INTEGER NOT NULL,
  power_mode         TEXT NOT NULL,
  execution_provider TEXT NOT NULL,
  seconds            REAL NOT NULL,
  labelled           INTEGER NOT NULL,
  correct            INTEGER NOT NULL,
  failures           INTEGER NOT NULL DEFAULT 0,
  variant            TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX executions_by_job ON executions (job, first);

CREATE TABLE forgotten_engines (
  name TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
"""

# Ranges of a job never overlap, so of those that begin before a new one ends, the last to begin is
# also the last to end: checking one row is enough.
_TRIGGER: Final = """
CREATE TRIGGER {name} BEFORE {event} ON executions BEGIN
  SELECT RAISE(ABORT, 'queries are recorded already') WHERE EXISTS (
    SELECT 1 FROM (
      SELECT stop FROM executions
      WHERE job = NEW.job AND first < NEW.stop AND assignment <> NEW.assignment
      ORDER BY first DESC LIMIT 1)
    WHERE stop > NEW.first);
  SELECT RAISE(ABORT, 'queries are beyond the job, or it has ended') WHERE NOT EXISTS (
    SELECT 1 FROM jobs WHERE sequence = NEW.job AND NEW.stop <= queries AND state <= 2);
END;
"""

_RULES: Final = {"new_queries_only": "INSERT", "further_queries_only": "UPDATE"}


class WrongVersion(Exception):
    """The file is not a journal, or has a version that this program does not read."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}, and this SynergAI reads version {VERSION}")


class Counters(NamedTuple):
    """Counters of the journal: epoch, and number of commits."""

    epoch: int
    commits: int


def read_version(connection: apsw.Connection) -> int:
    """Return the version of the journal; 0 if the database has no tables."""
    application, version = (connection.pragma(name) for name in ("application_id", "user_version"))
    if application == APPLICATION_ID and version == VERSION:
        return VERSION
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(0,)]:
        return 0
    raise WrongVersion(
        f"it has version {version}"
        if application == APPLICATION_ID
        else "it is a database of another program"
    )


def create(connection: apsw.Connection) -> None:
    with connection:
        if read_version(connection):
            return
        connection.execute(_TABLES)
        for name, event in _RULES.items():
            connection.execute(_TRIGGER.format(name=name, event=event))
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", VERSION)


def read_counters(connection: apsw.Connection) -> Counters:
    row = connection.execute("SELECT epoch, commits FROM gateway").fetchone()
    if row is None:
        raise WrongVersion("it has no epoch")
    return Counters(*row)


COUNT_COMMIT: Final = "UPDATE gateway SET (commits, boot_id, since_boot, unix) = (?, ?, ?, ?)"
"""Records the number of commits, the current one included, and when it is made."""


def next_epoch(connection: apsw.Connection, now: ClockReading) -> Counters:
    """Increment the epoch, durably, and return the counters; see also `follow_clock`."""
    with connection:
        before = read_counters(connection)
        changed_s = follow_clock(connection, now)
        connection.execute("UPDATE gateway SET epoch = epoch + 1")
        connection.execute(COUNT_COMMIT, (before.commits + 1, *now))
    if abs(changed_s) > _NOTABLE_S:
        _log.warning(
            "the system clock was changed by %+.0f s while no gateway ran: the deadlines of "
            "unfinished jobs move with it",
            changed_s,
        )
    return Counters(before.epoch + 1, before.commits + 1)


def follow_clock(connection: apsw.Connection, now: ClockReading) -> float:
    """Move the instants of unfinished jobs by how the clock was changed; return these seconds.

    Their deadlines then are as far away as they would be if the clock had not been changed.
    """
    [row] = connection.execute("SELECT boot_id, since_boot, unix FROM gateway")
    last = ClockReading(*row)
    if not last.unix:
        return 0.0
    change = now.unix - last.unix - time_between(last, now)
    connection.execute(
        "UPDATE jobs SET submitted_at = submitted_at + ?1, dispatched_at = dispatched_at + ?1 "
        "WHERE state <= 2",
        (change,),
    )
    return change
