"use strict";
// The timeline of workers and assignments, and the goodput under it.

const ROW = 34, AXIS = 22;
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
  const isShown = (row) => {
    const worker = model.workers.get(row.id);
    return (worker || row.bars.size) && (matches(row.id, worker?.worker_class)
      || [...row.bars.values()].some((bar) => matches(bar.engine, bar.job)));
  };
  return [...model.rows.values()].filter(isShown).sort((one, other) => order.compare(one.id, other.id));
}

function draw() {
  const wanted = AXIS + Math.max(2, shownRows.length) * ROW;
  byId("height").style.height = `${wanted}px`;
  const height = Math.min(wanted, rowsBox.clientHeight || wanted);
  const time = scale(), top = rowsBox.scrollTop, context = pen(canvas, time.width, height);
  const first = Math.floor(top / ROW), last = Math.ceil((top + height) / ROW);
  drawAxis(context, time, height);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, time.width, height);
  context.clip();
  shownRows.slice(first, last).forEach((row, place) =>
    drawRow(context, row, AXIS + (first + place) * ROW - top, time));
  context.restore();
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
