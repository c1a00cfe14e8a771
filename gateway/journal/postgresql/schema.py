"""Schema of the journal in PostgreSQL: the tables of `gateway.journal.schema`, and the leader."""

from __future__ import annotations

from typing import Final

VERSION: Final = 2  # and the default of the column
SCHEMA: Final = "synergai"

CREATE_SCHEMA: Final = f"CREATE SCHEMA {SCHEMA}"

CREATE_TABLES: Final = """
CREATE TABLE gateway (
  version integer NOT NULL DEFAULT 2,
  cluster uuid NOT NULL,
  epoch   bigint NOT NULL,
  leader  text NOT NULL DEFAULT '',
  commits bigint NOT NULL DEFAULT 0,
  unix    double precision NOT NULL DEFAULT 0,
  at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO gateway (cluster, epoch) VALUES (gen_random_uuid(), 0);

CREATE TABLE engines (
  name        text PRIMARY KEY,
  unloaded    integer NOT NULL DEFAULT 0,
  description text NOT NULL DEFAULT ''
);

CREATE TABLE jobs (
  sequence      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id            text NOT NULL UNIQUE,
  engine        text NOT NULL,
  queries       bigint NOT NULL CHECK (queries > 0),
  qos_s         double precision,
  priority      bigint NOT NULL,
  tenant        text NOT NULL,
  submitted_at  double precision NOT NULL,
  dispatched_at double precision,
  estimated_s   double precision,
  state         integer NOT NULL CHECK (state BETWEEN 1 AND 7),
  finished_at   double precision,
  reason        text NOT NULL DEFAULT '',
  stages        text NOT NULL DEFAULT '',
  upload        text NOT NULL DEFAULT '',
  max_failures  bigint,
  variant       text NOT NULL DEFAULT '',
  min_accuracy  double precision NOT NULL DEFAULT 0,
  key           text NOT NULL DEFAULT '',
  submission    text NOT NULL DEFAULT '',
  CHECK ((state > 2) = (finished_at IS NOT NULL))
);
CREATE INDEX jobs_unfinished ON jobs (sequence) WHERE state <= 2;
CREATE INDEX jobs_ended ON jobs (sequence) WHERE state > 2;
CREATE INDEX jobs_by_owner ON jobs (engine, tenant, sequence, state) WHERE state > 2;
CREATE UNIQUE INDEX jobs_by_upload ON jobs (tenant, upload) WHERE upload <> '';

-- A table of its own in SQLite; here, accepting a job changes one table.
CREATE UNIQUE INDEX jobs_by_key ON jobs (tenant, key) WHERE key <> '';
CREATE VIEW keys AS SELECT tenant, key, submission, sequence AS job FROM jobs WHERE key <> '';

CREATE TABLE executions (
  assignment         bigint PRIMARY KEY,
  job                bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
  first              bigint NOT NULL CHECK (first >= 0),
  stop               bigint NOT NULL CHECK (stop > first),
  worker             text NOT NULL,
  threads            bigint NOT NULL,
  power_mode         text NOT NULL,
  execution_provider text NOT NULL,
  seconds            double precision NOT NULL,
  labelled           bigint NOT NULL,
  correct            bigint NOT NULL,
  failures           bigint NOT NULL DEFAULT 0,
  variant            text NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX executions_by_job ON executions (job, first);

CREATE TABLE forgotten_engines (
  name text PRIMARY KEY
);

-- Files and profiles of the leader's state directory.
CREATE TABLE documents (
  name    text PRIMARY KEY,
  content text NOT NULL
);

-- The rules of SQLite's triggers. Only the leader commits, so no other transaction is overlooked.
CREATE FUNCTION check_execution() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT stop FROM executions
      WHERE job = NEW.job AND first < NEW.stop AND assignment <> NEW.assignment
      ORDER BY first DESC LIMIT 1) > NEW.first THEN
    RAISE EXCEPTION 'queries are recorded already' USING ERRCODE = 'check_violation';
  END IF;
  IF NOT EXISTS (
      SELECT FROM jobs WHERE sequence = NEW.job AND NEW.stop <= queries AND state <= 2) THEN
    RAISE EXCEPTION 'queries are beyond the job, or it has ended'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER further_queries_only BEFORE INSERT OR UPDATE ON executions
  FOR EACH ROW EXECUTE FUNCTION check_execution();
"""
