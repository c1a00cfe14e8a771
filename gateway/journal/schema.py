"""Schema of the journal's database."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import apsw

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = 2
APPLICATION_ID: Final = 0x53594E41  # "SYNA", to recognise files of other programs

_TABLES: Final = """
CREATE TABLE gateway (epoch INTEGER NOT NULL) STRICT;
INSERT INTO gateway VALUES (0);

CREATE TABLE engines (
  name     TEXT PRIMARY KEY,
  unloaded INTEGER NOT NULL DEFAULT 0 CHECK (unloaded IN (0, 1))
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
  CHECK ((state > 2) = (finished_at IS NOT NULL))
) STRICT;
CREATE INDEX jobs_unfinished ON jobs (sequence) WHERE state <= 2;
CREATE INDEX jobs_ended ON jobs (sequence) WHERE state > 2;

CREATE TABLE keys (
  key    TEXT PRIMARY KEY,
  digest BLOB NOT NULL,
  job    INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE
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
  correct            INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX executions_by_job ON executions (job, first);
"""

_FROM_VERSION_1: Final = """
ALTER TABLE engines ADD COLUMN unloaded INTEGER NOT NULL DEFAULT 0 CHECK (unloaded IN (0, 1));
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


class WrongVersion(Exception):
    """The file is not a journal, or has another version."""


def open_database(path: Path) -> apsw.Connection:
    """Open the journal at `path`, migrating or creating it if necessary.

    Raises:
        WrongVersion: the file is not a journal, or of an unsupported version.
        apsw.Error: it cannot be read or written.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(closing(apsw.Connection(str(path))))
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.pragma("foreign_keys", True)
        with connection:
            _create_or_check(connection)
        stack.pop_all()
    return connection


def _create_or_check(connection: apsw.Connection) -> None:
    application, version = (connection.pragma(name) for name in ("application_id", "user_version"))
    if (application, version) == (APPLICATION_ID, VERSION):
        return
    if (application, version) == (APPLICATION_ID, 1):
        connection.execute(_FROM_VERSION_1)
        connection.pragma("user_version", VERSION)
        return
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchall() != [(0,)]:
        found = f"version {version}" if application == APPLICATION_ID else "of another program"
        raise WrongVersion(f"it is {found}; this gateway needs version {VERSION}")
    connection.execute(_TABLES)
    connection.execute(_TRIGGER.format(name="new_queries_only", event="INSERT"))
    connection.execute(_TRIGGER.format(name="further_queries_only", event="UPDATE"))
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", VERSION)


def next_epoch(connection: apsw.Connection) -> int:
    """Increment the epoch, durably, and return it."""
    row = connection.execute("UPDATE gateway SET epoch = epoch + 1 RETURNING epoch").fetchone()
    if row is None:
        raise WrongVersion("it has no epoch")
    return int(row[0])
