"use strict";
// Times and reasons in words.

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
const percent = (share) => `${share > 0 ? "+" : ""}${(share * 100).toFixed(0)}\u00a0%`;
const order = new Intl.Collator("en", { numeric: true });
const matches = (...texts) => !view.filter
  || texts.some((text) => (text ?? "").toLowerCase().includes(view.filter));

// What the scheduler itself says about a job, as `synergai explain` does. A recording has only events.
async function explain(job, facts) {
  if (recording) return;
  try {
    const response = await fetch(`fleet/explain/${encodeURIComponent(job)}`, { headers: authorization() });
    if (!response.ok) return;
    const { sentences } = await response.json();
    if (sentences.length) facts.prepend(pairOf("Explained", sentences.join(" ")));
  } catch {
    // Without a connection, which the status says, the facts from the events remain.
  }
}

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
