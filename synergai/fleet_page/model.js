"use strict";
// What the page knows: the records that the gateway sends, or that a recording has.
// Names come from outside: they are only ever set as text.

const KEPT = 10000; // ended assignments and jobs
const LANES = 3; // assignments side by side in a row
const byId = (id) => document.getElementById(id);

class Model {
  constructor() { this.reset(); }

  reset() {
    for (const kind of ["workers", "jobs", "assignments", "incidents", "seconds", "deployments", "rows"])
      this[kind] = new Map();
    this.running = new Set();
    this.at = 0;
  }

  apply(batch) {
    for (const record of batch.records) this[record.kind](record, batch.at);
    this.at = batch.at;
  }

  row(id) {
    let row = this.rows.get(id);
    if (!row) this.rows.set(id, row = { id, bars: new Map(), lanes: [], modes: [] });
    return row;
  }

  worker(record, at) {
    const left = record.state === "left", mode = left ? "" : record.mode;
    if (left) this.workers.delete(record.id);
    else this.workers.set(record.id, record);
    const { modes } = this.row(record.id);
    if (modes.at(-1)?.mode !== mode) modes.push({ at, mode });
  }

  job(record) { this.jobs.set(record.id, record); this.trim(this.jobs); }
  incident(record) { this.incidents.set(record.id, record); this.shorten(this.incidents); }
  second(record) { this.seconds.set(record.at, record); this.shorten(this.seconds); }

  deployment(record) {
    if (record.state === "gone") this.deployments.delete(record.id);
    else this.deployments.set(record.id, record);
  }

  assignment(record) {
    const row = this.row(record.worker), known = this.assignments.get(record.id);
    record.lane = known ? known.lane : freeLane(row, record);
    row.lanes[record.lane] = record;
    row.bars.set(record.id, record);
    this.assignments.set(record.id, record);
    if (record.ended == null) this.running.add(record.id);
    else this.running.delete(record.id);
    this.trim(this.assignments, ({ id, worker }) => this.row(worker).bars.delete(id));
  }

  // Forget what ended first. A recording is kept whole.
  trim(records, forget) {
    if (recording || records.size < 2 * KEPT) return;
    for (const record of records.values()) {
      if (records.size <= KEPT) break;
      if (record.ended == null) continue;
      records.delete(record.id);
      forget?.(record);
    }
  }

  shorten(records) {
    if (!recording && records.size > KEPT) records.delete(records.keys().next().value);
  }

  deadline(assignment) { return this.jobs.get(assignment.job)?.deadline ?? Infinity; }
  late(assignment, now) { return (assignment.ended ?? now) > this.deadline(assignment); }
}

function freeLane(row, record) {
  for (let lane = 0; lane < LANES; lane++) {
    const last = row.lanes[lane];
    if (!last || (last.ended ?? Infinity) <= record.at) return lane;
  }
  return LANES - 1;
}

const recorded = byId("recording");
const recording = recorded && JSON.parse(recorded.textContent);
const model = new Model();
const view = { span: 60, end: 0, follow: true, selected: null, record: null, filter: "" };
let received = 0; // performance.now() of the last batch
let connected = false;
let clock = 0; // wall time of the gateway's time 0, in seconds

function now() {
  if (recording || !connected) return model.at;
  return model.at + Math.min(2, (performance.now() - received) / 1000);
}
