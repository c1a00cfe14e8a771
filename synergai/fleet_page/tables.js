"use strict";
// The figures and tables, and the details of what is selected.

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

// Engines by name, with the workers that have them, or stages of them.
const STAGE = /^(.+)\.(s\d+-\d+)(\/\d+)?$/;
function engines() {
  const found = new Map();
  const add = (engine, state, place) => {
    if (!found.has(engine)) found.set(engine, { engine, state, places: [] });
    if (place) found.get(engine).places.push(place);
  };
  for (const { id, state } of model.deployments.values()) add(id, state);
  for (const { id, engines: all } of model.workers.values())
    for (const name of all ?? []) {
      const [, engine, stage, version = ""] = STAGE.exec(name) ?? [];
      if (stage) add(engine + version, "stages", `${stage} on ${id}`);
      else add(name, "whole", id);
    }
  return [...found.values()].sort((one, other) => order.compare(one.engine, other.engine))
    .map(({ engine, state, places }) => {
      const { where, why } = model.deployments.get(engine) ?? {};
      const others = places.length > 8 ? ` and ${places.length - 8} more` : "";
      return { engine, state, where: where || places.slice(0, 8).join(", ") + others, why };
    });
}

function lately(at) {
  const sum = { met: 0, violated: 0, omitted: 0 };
  for (let second = Math.floor(at) - 59; second <= at; second++) {
    const one = model.seconds.get(second);
    sum.met += one?.met ?? 0;
    sum.violated += one?.violated ?? 0;
    sum.omitted += one?.omitted ?? 0;
  }
  return sum;
}

function showFigures(queue) {
  const { met, violated, omitted } = lately(now()), ended = met + violated;
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
  if (omitted) all.push(["Requests not drawn", `${omitted}`]);
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
  const shown = engines().filter(({ engine, where }) => matches(engine, where));
  fill("engines", shown.map(({ engine, state, where, why }) => [
    engine, { text: state, bad: state === "failed" }, where || "–", why || "–",
  ]));
  fill("errors", errors().filter(({ engine, worker }) => matches(engine, worker)).map((each) => [
    each.engine, each.worker, `${each.runs}`, percent(each.off / each.took),
    `${((each.error / each.took) * 100).toFixed(0)}\u00a0%`,
  ]));
  fill("incidents", [...model.incidents.values()].filter(({ worker, text }) => matches(worker, text))
    .reverse().map(({ at: then, worker, text }) => [moment(then), worker || "–", text]));
}

function select(assignment, job) {
  const detail = byId("detail"), record = assignment ? model.assignments.get(assignment) : model.jobs.get(job);
  if (!record) return;
  view.selected = assignment;
  view.record = record;
  const title = document.createElement("h2"), facts = document.createElement("dl");
  title.textContent = assignment
    ? `${record.engine} on ${record.worker}: queries ${record.first} to ${record.first + record.count - 1} of ${record.job}`
    : `${record.id}: ${counted(record.queries, "query").replace("querys", "queries")} of ${record.engine}`;
  const lines = assignment ? [...reasons(record), ...figures(record)] : reasonsOfJob(record);
  facts.append(...lines.map((line) => pairOf(...line)));
  detail.replaceChildren(title, facts);
  explain(assignment ? record.job : record.id, facts);
  stale = true;
}

function pairOf(name, value, bad) {
  const pair = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
  term.textContent = name;
  text.textContent = value;
  text.className = bad ? "bad" : "";
  pair.append(term, text);
  return pair;
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
