"use strict";
// Live from the gateway, or the replay of the recording that is part of the page.

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
let token = "";
const authorization = () => (token ? { authorization: `Bearer ${token}` } : {});
async function signIn(response) {
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
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    // Browsers open six connections to a host: a page in the background holds none.
    if (document.hidden) await once(document, "visibilitychange");
    const leaving = new AbortController();
    const leave = () => document.hidden && leaving.abort();
    document.addEventListener("visibilitychange", leave);
    try {
      const headers = authorization();
      const response = await fetch("fleet/events", { headers, cache: "no-store", signal: leaving.signal });
      if (response.status === 401 || response.status === 403) {
        token = await signIn(response);
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

function replay() {
  const { batches, began, ended } = recording, slider = byId("moment"), play = byId("follow");
  let place = 0, playing = false, last = 0;

  function seek(at) {
    if (at < model.at) {
      model.reset();
      place = 0;
    }
    while (place < batches.length && batches[place].at <= at) model.apply(batches[place++]);
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
