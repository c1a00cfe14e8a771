"use strict";
// Keyboard, mouse and buttons, and when what is drawn anew.

const SPANS = [2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 24 * 3600];

function setFollow(follow) {
  view.end = scale().end;
  view.follow = follow;
  if (!recording) byId("follow").setAttribute("aria-pressed", String(follow));
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
  const selected = model.assignments.get(view.selected);
  if (selected?.ended !== undefined && view.record.ended === undefined) select(selected.id, null);
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
