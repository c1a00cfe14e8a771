"use strict";
// The fleet page: live from the gateway, or of a recording that is part of the page. Names come
// from outside: they are only ever set as text.

const KEPT = 10000; // ended assignments and jobs
const ROW = 34, AXIS = 22, LANES = 3;
const SPANS = [2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600];
const byId = (id) => document.getElementById(id);

// --- state ---------------------------------------------------------------------------------

class Model {
  constructor() { this.reset(); }

  reset() {
    for (const kind of ["workers", "jobs", "assignments", "incidents", "seconds", "rows"])
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
    this.workers.set(record.id, record);
    const { modes } = this.row(record.id), last = modes.at(-1);
    if (!last || last.mode !== record.mode) modes.push({ at, mode: record.mode });
  }

  job(record) { this.jobs.set(record.id, record); this.trim(this.jobs); }
  incident(record) { this.incidents.set(record.id, record); }
  second(record) { this.seconds.set(record.at, record); }

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
const view = { span: 60, end: 0, follow: true, selected: null, job: null, filter: "" };
let received = 0; // performance.now() of the last batch
let connected = false;
let clock = 0; // wall time of the gateway's time 0, in seconds

function now() {
  if (recording || !connected) return model.at;
  return model.at + Math.min(2, (performance.now() - received) / 1000);
}

// --- words ---------------------------------------------------------------------------------

function seconds(value) {
  const size = Math.abs(value);
  if (size < 1) return `${(value * 1000).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 120) return `${value.toFixed(size < 10 ? 1 : 0)} s`;
  return size < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

function moment(at) {
  if (!recording) return new Date((clock + at) * 1000).toLocaleTimeString("en-GB");
  const since = Math.max(0, at - recording.began), whole = Math.floor(since);
  const text = `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  return view.span > 10 ? text : text + (since - whole).toFixed(1).slice(1);
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const percent = (share) => `${share > 0 ? "+" : ""}${(share * 100).toFixed(0)} %`;
const order = new Intl.Collator("en", { numeric: true });
const matches = (...texts) => !view.filter
  || texts.some((text) => (text ?? "").toLowerCase().includes(view.filter));

// What the events say about an assignment. They do not say how the policy compared the workers.
function reasons(assignment) {
  const job = model.jobs.get(assignment.job), due = model.deadline(assignment), at = now();
  const others = [...model.workers.values()].filter(
    (worker) => worker.id !== assignment.worker && worker.engines?.includes(assignment.engine));
  const busy = others.filter((worker) => [...model.row(worker.id).bars.values()].some(
    (bar) => bar.at < assignment.at && (bar.ended ?? Infinity) > assignment.at));
  const setup = assignment.setup_s
    ? `A setup of ${seconds(assignment.setup_s)} was expected.` : "The session was resident.";
  const here = others.length === 0
    ? `It is the only worker that has ${assignment.engine}. ${setup}`
    : `Of ${counted(others.length, "other worker")} with ${assignment.engine}, ${busy.length} `
      + `had work at the time. ${setup}`;
  return [
    ["Why here", here],
    ["Why now", whyNow(assignment, job)],
    ["Why late", whyLate(assignment, job, due, at), model.late(assignment, at)],
  ];
}

function whyNow(assignment, job) {
  if (!job) return "Its job is no longer known.";
  const waited = assignment.at - job.arrival;
  if (waited < 0.005) return "It was dispatched when it arrived.";
  const before = [...model.row(assignment.worker).bars.values()].filter(
    (bar) => bar.ended != null && bar.ended <= assignment.at && bar.ended > assignment.at - 0.05);
  const free = before.length
    ? ` The worker had just ended assignment ${before.at(-1).id} of ${before.at(-1).job}.` : "";
  return `It was dispatched ${seconds(waited)} after the job arrived.${free}`;
}

function whyLate(assignment, job, due, at) {
  const end = assignment.ended ?? at, expected = assignment.at + (assignment.estimate_s ?? 0);
  if (due === Infinity) return "The job has no deadline.";
  if (end <= due)
    return assignment.ended == null ? `It is due in ${seconds(due - at)}.`
      : `It is not: it ended ${seconds(due - end)} before the deadline.`;
  const by = `It is ${seconds(end - due)} past the deadline. `;
  const wait = `the job had waited ${seconds(assignment.at - job.arrival)} of ${seconds(due - job.arrival)}`;
  if (assignment.at > due) return `${by}It was dispatched after it: ${wait}.`;
  if (!assignment.estimate_s) return `${by}There was no estimate: ${wait} when it was dispatched.`;
  if (expected > due)
    return `${by}That was expected at dispatch: ${wait}, and ${seconds(assignment.estimate_s)} were estimated.`;
  return `${by}It took ${seconds(end - expected)} longer than the estimated ${seconds(assignment.estimate_s)}.`;
}

function reasonsOfJob(job) {
  const at = now(), due = job.deadline ?? Infinity;
  const able = [...model.workers.values()].filter((worker) => worker.engines?.includes(job.engine));
  const work = new Set([...model.running].map((id) => model.assignments.get(id).worker));
  const ahead = waiting().filter(({ job: other }) => (other.deadline ?? Infinity) < due).length;
  return [
    ["Why it waits", job.ended != null ? `It does not: ${job.state}. ${job.reason ?? ""}`
      : `${counted(able.length, "worker")} with ${job.engine}, ${able.filter((each) => work.has(each.id)).length} `
        + `with work. ${counted(ahead, "waiting job")} due earlier.`],
    ["Waited", seconds((job.ended ?? at) - job.arrival)],
    ["Deadline", due === Infinity ? "None." : `${moment(due)}, ${at < due ? "in" : "past by"} ${seconds(Math.abs(due - at))}.`,
      (job.ended ?? at) > due],
  ];
}

// --- figures and tables --------------------------------------------------------------------

// Open jobs with queries that no worker has, the most urgent first.
function waiting() {
  const held = new Map();
  for (const id of model.running) {
    const { job, count, done = 0 } = model.assignments.get(id);
    held.set(job, (held.get(job) ?? 0) + count - done);
  }
  const finished = new Map();
  for (const { job, done = 0 } of model.assignments.values())
    finished.set(job, (finished.get(job) ?? 0) + done);
  return [...model.jobs.values()]
    .filter((job) => job.ended == null)
    .map((job) => ({ job, left: job.queries - (held.get(job.id) ?? 0) - (finished.get(job.id) ?? 0) }))
    .filter(({ left }) => left > 0)
    .sort((one, other) => (one.job.deadline ?? Infinity) - (other.job.deadline ?? Infinity));
}

// Bias and mean absolute error of the estimates of completed assignments, relative to the time.
function errors() {
  const groups = new Map();
  for (const each of model.assignments.values()) {
    if (each.outcome !== "completed" || !each.estimate_s) continue;
    const key = JSON.stringify([each.engine, each.worker]), took = each.ended - each.at;
    const group = groups.get(key) ?? { runs: 0, took: 0, off: 0, error: 0, ...each };
    group.runs++;
    group.took += took;
    group.off += each.estimate_s - took;
    group.error += Math.abs(each.estimate_s - took);
    groups.set(key, group);
  }
  return [...groups.values()].sort((one, other) => other.error / other.took - one.error / one.took);
}

function lately(at) {
  const sum = { met: 0, violated: 0, left: 0 };
  for (let second = Math.floor(at) - 59; second <= at; second++) {
    const one = model.seconds.get(second);
    sum.met += one?.met ?? 0;
    sum.violated += one?.violated ?? 0;
    sum.left += one?.left_out ?? 0;
  }
  return sum;
}

function showFigures(queue) {
  const { met, violated, left } = lately(now()), ended = met + violated;
  const workers = [...model.workers.values()];
  const serving = workers.filter((each) => (each.state ?? "serving") === "serving").length;
  const metered = workers.filter((each) => each.watts != null);
  const all = [
    ["Workers serving", `${serving}`], ["Assignments", `${model.running.size}`],
    ["Jobs waiting", `${queue.length}`], ["Goodput, last minute", `${(met / 60).toFixed(1)}/s`],
    ["Past deadline, last minute", ended ? `${((violated / ended) * 100).toFixed(1)} %` : "none ended"],
  ];
  if (metered.length)
    all.push(["Power", `${metered.reduce((sum, each) => sum + each.watts, 0).toFixed(0)} W`]);
  if (left) all.push(["Requests not drawn", `${left}`]);
  const list = byId("figures");
  while (list.children.length > all.length) list.lastChild.remove();
  while (list.children.length < all.length) {
    const pair = list.appendChild(document.createElement("div"));
    pair.append(document.createElement("dt"), document.createElement("dd"));
  }
  all.forEach(([name, value], place) => {
    const [term, figure] = list.children[place].children;
    term.textContent = name;
    figure.textContent = value;
  });
}

// A cell is a text, or {text, job} or {text, assignment} for a button, or {text, bad}.
function fill(id, rows, limit = 100) {
  const body = byId(id).tBodies[0];
  const shown = rows.slice(0, limit);
  if (rows.length > limit) shown.push([`${rows.length - limit} more: use the filter`]);
  if (!rows.length) shown.push(["none"]);
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach((cells, place) => {
    const row = body.rows[place] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, column) => show(row.cells[column] ?? row.insertCell(), cell));
  });
}

function show(element, cell) {
  const { text, job, assignment, bad } = typeof cell === "string" ? { text: cell } : cell;
  element.className = bad ? "bad" : "";
  let target = element;
  if (job || assignment) {
    target = element.querySelector("button");
    if (!target) element.replaceChildren(target = document.createElement("button"));
    target.onclick = () => select(assignment ?? null, job ?? null);
  }
  if (target.textContent !== text || (target === element && element.firstElementChild))
    target.textContent = text;
}

function showTables() {
  const at = now(), queue = waiting();
  showFigures(queue);
  fill("queue", queue.filter(({ job }) => matches(job.id, job.engine, job.tenant)).map(({ job, left }) => [
    { text: job.id, job: job.id }, job.engine,
    job.deadline == null ? "no deadline"
      : job.deadline < at ? { text: `past by ${seconds(at - job.deadline)}`, bad: true }
        : seconds(job.deadline - at),
    `${left}`,
  ]));
  const runs = new Map();
  for (const id of model.running) {
    const each = model.assignments.get(id);
    if (!runs.has(each.worker)) runs.set(each.worker, each);
  }
  const workers = [...model.workers.values()].filter(({ id, worker_class }) => matches(id, worker_class));
  fill("workers", workers.map(({ id, state = "serving", mode, watts }) => [
    id, { text: state, bad: state !== "serving" }, mode || "–", watts == null ? "–" : watts.toFixed(1),
    runs.has(id) ? { text: runs.get(id).engine, assignment: runs.get(id).id } : "–",
  ]));
  fill("errors", errors().filter(({ engine, worker }) => matches(engine, worker)).map((each) => [
    each.engine, each.worker, `${each.runs}`, percent(each.off / each.took),
    `${((each.error / each.took) * 100).toFixed(0)} %`,
  ]));
  fill("incidents", [...model.incidents.values()].filter(({ worker, text }) => matches(worker, text))
    .reverse().map(({ at: then, worker, text }) => [moment(then), worker || "–", text]));
}

function select(assignment, job) {
  view.selected = assignment;
  view.job = job;
  const detail = byId("detail"), record = assignment ? model.assignments.get(assignment) : model.jobs.get(job);
  if (!record) return;
  const title = document.createElement("h2"), facts = document.createElement("dl");
  title.textContent = assignment
    ? `${record.engine} on ${record.worker}: queries ${record.first} to ${record.first + record.count - 1} of ${record.job}`
    : `${record.id}: ${counted(record.queries, "query").replace("querys", "queries")} of ${record.engine}`;
  const lines = assignment ? [...reasons(record), ...figures(record)] : reasonsOfJob(record);
  for (const [name, value, bad] of lines) {
    const pair = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    text.className = bad ? "bad" : "";
    pair.append(term, text);
    facts.append(pair);
  }
  detail.replaceChildren(title, facts);
  stale = true;
}

function figures(assignment) {
  const took = (assignment.ended ?? now()) - assignment.at;
  const estimate = assignment.estimate_s ? seconds(assignment.estimate_s) : "unknown";
  return [
    ["Configuration", assignment.configuration],
    ["Time", `${moment(assignment.at)}, ${seconds(took)}${assignment.ended == null ? " so far" : ""}; estimate ${estimate}`],
    ["State", `${assignment.outcome || "running"}, ${assignment.done ?? 0} of ${assignment.count} done${assignment.detail ? `: ${assignment.detail}` : ""}`],
  ];
}

// --- timeline ------------------------------------------------------------------------------

const rowsBox = byId("rows"), canvas = byId("timeline"), strip = byId("goodput");
let colours = {}, stale = true, shownRows = [];

function readColours() {
  const style = getComputedStyle(document.body), probe = document.createElement("i");
  document.body.append(probe);
  for (const name of ["ink", "muted", "line", "accent", "good", "bad", "card", "c0", "c1", "c2", "c3", "c4", "c5"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.font = style.fontFamily;
  const tile = new OffscreenCanvas(6, 6), pen = tile.getContext("2d");
  pen.strokeStyle = colours.bad;
  pen.lineWidth = 1.5;
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  colours.hatch = canvas.getContext("2d").createPattern(tile, "repeat");
  stale = true;
}

function colourOf(name) {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) >>> 0;
  return colours[`c${hash % 6}`];
}

function scale() {
  const width = rowsBox.clientWidth, labels = width < 600 ? 76 : 150;
  const end = view.follow ? now() + (recording ? 0.02 : 0.2) * view.span : view.end;
  const start = end - view.span, pixels = (width - labels) / view.span;
  return { width, labels, start, end, x: (at) => labels + (at - start) * pixels };
}

function pen(target, width, height) {
  const ratio = devicePixelRatio, context = target.getContext("2d");
  if (target.width !== Math.round(width * ratio) || target.height !== Math.round(height * ratio)) {
    target.width = Math.round(width * ratio);
    target.height = Math.round(height * ratio);
    target.style.height = `${height}px`;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `11px ${colours.font}`;
  return context;
}

function visibleRows() {
  const rows = [...model.rows.values()].filter((row) => matches(row.id, model.workers.get(row.id)?.worker_class)
    || [...row.bars.values()].some((bar) => matches(bar.engine, bar.job)));
  return rows.sort((one, other) => order.compare(one.id, other.id));
}

function draw() {
  const wanted = AXIS + Math.max(2, shownRows.length) * ROW;
  byId("height").style.height = `${wanted}px`;
  const height = Math.min(wanted, rowsBox.clientHeight || wanted);
  const time = scale(), top = rowsBox.scrollTop, context = pen(canvas, time.width, height);
  const first = Math.floor(top / ROW), last = Math.ceil((top + height) / ROW);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, time.width, height);
  context.clip();
  shownRows.slice(first, last).forEach((row, place) =>
    drawRow(context, row, AXIS + (first + place) * ROW - top, time));
  context.restore();
  drawAxis(context, time, height);
  drawGoodput(time);
}

function drawAxis(context, time, height) {
  const wanted = view.span / Math.max(2, (time.width - time.labels) / 110);
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400].find((each) => each >= wanted) ?? 28800;
  const origin = recording ? recording.began : -clock;
  context.fillStyle = colours.muted;
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.textAlign = "center";
  for (let at = origin + Math.ceil((time.start - origin) / step) * step; at < time.end; at += step) {
    const x = Math.round(time.x(at)) + 0.5;
    if (x < time.labels + 20 || at < origin - 1e-6) continue;
    context.globalAlpha = 0.6;
    line(context, x, AXIS - 4, height);
    context.globalAlpha = 1;
    context.fillText(moment(at + 1e-6), x, 12);
  }
  context.textAlign = "left";
  context.strokeStyle = colours.ink;
  const x = time.x(now());
  if (x < time.width) line(context, Math.round(x) + 0.5, AXIS - 6, height);
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length - 1;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}

function line(context, x, from, to) {
  context.beginPath();
  context.moveTo(x, from);
  context.lineTo(x, to);
  context.stroke();
}

function drawRow(context, row, y, time) {
  const worker = model.workers.get(row.id);
  context.fillStyle = colours.ink;
  context.fillText(shortened(context, row.id, time.labels - 8), 0, y + 14);
  context.fillStyle = !worker || worker.state ? colours.bad : colours.muted;
  const watts = worker?.watts == null ? "" : ` ${worker.watts.toFixed(0)} W`;
  const state = worker ? worker.state ?? (worker.mode || worker.worker_class) : "left";
  context.fillText(shortened(context, state + watts, time.labels - 8), 0, y + 27);
  context.save();
  context.beginPath();
  context.rect(time.labels, y, time.width, ROW);
  context.clip();
  const lanes = Math.min(LANES, row.lanes.length || 1), height = (ROW - 8) / lanes;
  for (const bar of row.bars.values()) {
    const due = model.deadline(bar), end = bar.ended ?? now();
    if (bar.at > time.end || Math.max(end, bar.at + (bar.estimate_s ?? 0), due < Infinity ? due : 0) < time.start) continue;
    drawBar(context, bar, due, end, y + 2 + bar.lane * height, height - 1.5, time);
  }
  row.modes.forEach(({ at, mode }, place) => {
    if (!mode) return;
    const to = row.modes[place + 1]?.at ?? now(), from = time.x(Math.max(at, time.start));
    context.fillStyle = colourOf(mode);
    context.fillRect(from, y + ROW - 5, time.x(to) - from, 2);
  });
  context.restore();
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.globalAlpha = 0.6;
  context.strokeRect(-1, y + ROW - 0.5, time.width + 2, 0);
  context.globalAlpha = 1;
}

function drawBar(context, bar, due, end, y, height, time) {
  const from = time.x(bar.at), to = Math.max(from + 1, time.x(end));
  const begun = bar.started == null ? from : Math.min(to, time.x(bar.started));
  context.fillStyle = colourOf(bar.engine);
  context.globalAlpha = 0.45;
  context.fillRect(from, y, begun - from, height);
  context.globalAlpha = bar.outcome && bar.outcome !== "completed" ? 0.45 : 1;
  context.fillRect(begun, y, to - begun, height);
  context.globalAlpha = 1;
  if (end > due) {
    const late = Math.max(from, time.x(due));
    context.fillStyle = colours.hatch;
    context.fillRect(late, y, Math.max(2, to - late), height);
    context.strokeStyle = colours.bad;
    context.lineWidth = 1;
    context.strokeRect(late + 0.5, y + 0.5, Math.max(1, to - late - 1), height - 1);
  }
  if (bar.estimate_s && time.x(bar.at + bar.estimate_s) - from > 3) {
    context.strokeStyle = colours.muted;
    context.lineWidth = 1.2;
    context.strokeRect(from + 0.5, y + 0.5, time.x(bar.at + bar.estimate_s) - from - 1, height - 1);
  }
  if (due < Infinity && (to - from > 3 || bar.ended == null)) {
    context.strokeStyle = end > due ? colours.bad : colours.accent;
    context.lineWidth = 2;
    line(context, time.x(due), y - 1, y + height + 1);
  }
  if (bar.id === view.selected) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(from - 1, y - 1, to - from + 2, height + 2);
  }
  const left = Math.max(from, time.labels) + 4;
  if (height > 9 && context.measureText(bar.engine).width < Math.min(to, time.width) - left) {
    context.fillStyle = colours.ink;
    context.fillText(bar.engine, left, y + height / 2 + 4);
  }
}

function drawGoodput(time) {
  const height = 56, context = pen(strip, time.width, height);
  const step = Math.max(1, Math.ceil(view.span / ((time.width - time.labels) / 4)));
  const buckets = new Map();
  for (let second = Math.floor(time.start); second <= Math.min(time.end, now()); second++) {
    const one = model.seconds.get(second), key = Math.floor(second / step) * step;
    const sum = buckets.get(key) ?? { met: 0, violated: 0 };
    sum.met += one?.met ?? 0;
    sum.violated += one?.violated ?? 0;
    buckets.set(key, sum);
  }
  const most = Math.max(1, ...[...buckets.values()].map(({ met, violated }) => met + violated));
  context.fillStyle = colours.muted;
  context.fillText("Goodput", 0, 16, time.labels - 8);
  context.fillText(`to ${(most / step).toFixed(most / step < 10 ? 1 : 0)}/s`, 0, 29, time.labels - 8);
  for (const [at, { met, violated }] of buckets) {
    const left = Math.max(time.labels, time.x(at)), width = Math.max(1, time.x(at + step) - left - 1);
    const good = (met / most) * (height - 4), bad = (violated / most) * (height - 4);
    if (time.x(at + step) < time.labels) continue;
    context.fillStyle = colours.good;
    context.fillRect(left, height - good, width, good);
    context.fillStyle = colours.hatch;
    context.fillRect(left, height - good - bad, width, bad);
  }
}

// --- control -------------------------------------------------------------------------------

function setFollow(follow) {
  view.end = scale().end;
  view.follow = follow;
  byId("follow").setAttribute("aria-pressed", String(follow));
  stale = true;
}

function pan(share) {
  setFollow(false);
  view.end += share * view.span;
}

function zoom(step) {
  const place = SPANS.findIndex((span) => span >= view.span);
  const span = SPANS[Math.min(SPANS.length - 1, Math.max(0, place + step))];
  view.end += (span - view.span) / 2;
  view.span = span;
  stale = true;
}

function hit(event) {
  const box = canvas.getBoundingClientRect(), time = scale();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const row = shownRows[Math.floor((y - AXIS + rowsBox.scrollTop) / ROW)];
  if (y < AXIS || !row) return null;
  let nearest = null, distance = 6;
  const lanes = Math.min(LANES, row.lanes.length || 1);
  const lane = Math.floor((((y - AXIS + rowsBox.scrollTop) % ROW) - 2) / ((ROW - 8) / lanes));
  for (const bar of row.bars.values()) {
    const from = time.x(bar.at), to = time.x(Math.max(bar.ended ?? now(), bar.at + (bar.estimate_s ?? 0)));
    const off = Math.max(from - x, x - to, 0) + (bar.lane === lane ? 0 : 3);
    if (off < distance) [nearest, distance] = [bar, off];
  }
  return nearest;
}

// Select the next assignment of the row, or the one at the same time in the next row.
function step(rows, bars) {
  const current = model.assignments.get(view.selected);
  const place = shownRows.findIndex((row) => row.id === current?.worker);
  const filled = (row) => row?.bars.size;
  let next = null;
  if (!current) next = [...(shownRows.find(filled)?.bars.values() ?? [])].at(-1);
  else if (bars) {
    const all = [...shownRows[place]?.bars.values() ?? []].sort((one, other) => one.at - other.at);
    next = all[all.findIndex(({ id }) => id === current.id) + bars];
  } else {
    let target = place + rows;
    while (shownRows[target] && !filled(shownRows[target])) target += rows;
    next = [...(shownRows[target]?.bars.values() ?? [])].sort(
      (one, other) => Math.abs(one.at - current.at) - Math.abs(other.at - current.at))[0];
  }
  if (!next) return;
  select(next.id, null);
  const time = scale(), top = shownRows.findIndex((row) => row.id === next.worker) * ROW;
  if (next.at < time.start || next.at > time.end) {
    setFollow(false);
    view.end = next.at + view.span / 2;
  }
  if (top < rowsBox.scrollTop) rowsBox.scrollTop = top;
  if (top + ROW + AXIS > rowsBox.scrollTop + rowsBox.clientHeight)
    rowsBox.scrollTop = top + ROW + AXIS - rowsBox.clientHeight;
}

const KEYS = {
  ArrowLeft: (shift) => (shift ? pan(-0.25) : step(0, -1)),
  ArrowRight: (shift) => (shift ? pan(0.25) : step(0, 1)),
  ArrowUp: () => step(-1, 0),
  ArrowDown: () => step(1, 0),
  "+": () => zoom(-1),
  "-": () => zoom(1),
  " ": () => toggle(),
};

let drag = null;
rowsBox.addEventListener("keydown", (event) => {
  const action = KEYS[event.key];
  if (!action || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  action(event.shiftKey);
});
rowsBox.addEventListener("scroll", () => { stale = true; });
canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, moved: false }; });
addEventListener("pointermove", (event) => {
  if (!drag || Math.abs(event.clientX - drag.x) < (drag.moved ? 1 : 5)) return;
  pan((drag.x - event.clientX) / (rowsBox.clientWidth - scale().labels));
  drag = { x: event.clientX, moved: true };
});
addEventListener("pointerup", (event) => {
  if (drag && !drag.moved && event.target === canvas) {
    const bar = hit(event);
    if (bar) select(bar.id, null);
  }
  drag = null;
});
byId("earlier").onclick = () => pan(-0.25);
byId("later").onclick = () => pan(0.25);
byId("in").onclick = () => zoom(-1);
byId("out").onclick = () => zoom(1);
byId("filter").oninput = (event) => {
  view.filter = event.target.value.trim().toLowerCase();
  refresh();
};
addEventListener("resize", () => { stale = true; });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

function refresh() {
  shownRows = visibleRows();
  showTables();
  stale = true;
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
let drawnAt = 0, refreshedAt = 0;
function frame(at) {
  const moves = view.follow && connected;
  if (stale || (moves && at - drawnAt > (calm.matches ? 1000 : 50))) {
    stale = false;
    drawnAt = at;
    draw();
  }
  if (connected && at - refreshedAt > 500) {
    refreshedAt = at;
    refresh();
  }
  requestAnimationFrame(frame);
}

function setStatus(text, kind) {
  byId("status").textContent = text;
  byId("status").className = kind;
}

// --- live ----------------------------------------------------------------------------------

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", seen = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n", seen)) >= 0; seen = 0) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(text.slice(0, end));
      yield { kind, batch: JSON.parse(data) };
      text = text.slice(end + 2);
    }
    seen = Math.max(0, text.length - 1);
  }
}

const pause = (time) => new Promise((done) => setTimeout(done, time));
const once = (target, name) => new Promise((done) => target.addEventListener(name, done, { once: true }));

// A token stays in memory: nothing else can use it, and the page asks again when it is reloaded.
async function signIn(response, token) {
  const { error } = await response.json();
  byId("refusal").textContent = token ? error : "This gateway asks for a token that may observe.";
  byId("sign-in").hidden = false;
  setStatus("Signed out", "");
  await once(byId("sign-in"), "submit");
  byId("sign-in").hidden = true;
  return byId("token").value;
}

async function live() {
  byId("follow").onclick = () => setFollow(!view.follow);
  byId("sign-in").addEventListener("submit", (event) => event.preventDefault());
  for (let token = "", wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    // Browsers open six connections to a host: a page in the background holds none.
    if (document.hidden) await once(document, "visibilitychange");
    const leaving = new AbortController();
    const leave = () => document.hidden && leaving.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const headers = token ? { authorization: `Bearer ${token}` } : {};
      const response = await fetch("fleet/events", { headers, cache: "no-store", signal: leaving.signal });
      if (response.status === 401 || response.status === 403) {
        token = await signIn(response, token);
        wait = 250;
        continue;
      }
      if (!response.ok) throw new Error((await response.json()).error);
      for await (const { kind, batch } of messages(response.body)) {
        if (kind === "state") {
          model.reset();
          clock = Date.now() / 1000 - batch.at;
          refreshedAt = 0;
        }
        model.apply(batch);
        received = performance.now();
        if (!connected) setStatus("Live", "live");
        connected = true;
        wait = 250;
      }
      setStatus("The gateway ended the connection, trying again", "lost");
    } catch (error) {
      if (!document.hidden) setStatus(`No connection: ${error.message}, trying again`, "lost");
    } finally {
      document.removeEventListener("visibilitychange", leave);
      connected = false;
    }
    await pause(wait);
  }
}
const toggle = () => byId("follow").click();

// --- replay --------------------------------------------------------------------------------

function replay() {
  const { batches, began, ended } = recording, slider = byId("moment"), play = byId("follow");
  let place = 0, playing = false, last = 0;

  function seek(at) {
    if (at < model.at) {
      model.reset();
      place = 0;
    }
    while (place < batches.length && batches[place].at <= at) model.apply(structuredClone(batches[place++]));
    model.at = at;
    slider.value = at - began;
    slider.setAttribute("aria-valuetext", moment(at));
    refresh();
  }

  function turn(time) {
    if (!playing) return;
    if (time - last > 60) {
      const at = Math.min(ended, model.at + (last ? (time - last) / 1000 : 0) * Number(byId("speed").value));
      last = time;
      view.follow = true;
      seek(at);
      if (at >= ended) setPlaying(false);
    }
    requestAnimationFrame(turn);
  }

  function setPlaying(value) {
    playing = value;
    last = 0;
    play.textContent = playing ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(playing));
    if (playing && model.at >= ended) seek(began);
    requestAnimationFrame(turn);
  }

  byId("replay").hidden = false;
  slider.max = ended - began;
  slider.oninput = () => {
    view.follow = true;
    seek(began + Number(slider.value));
  };
  play.onclick = () => setPlaying(!playing);
  setStatus(`Recording: ${recording.title}`, "");
  view.span = Math.max(1, 1.05 * (ended - began));
  setPlaying(false);
  seek(ended);
}

readColours();
requestAnimationFrame(frame);
if (recording) replay();
else live();
