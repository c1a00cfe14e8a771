"""Profiled engines are preloaded on every worker, within its memory."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from tests.cores import new_entry
from tests.tiny_tflite import save_sum

MEMORY_MB = 4096
PROFILE = new_entry("sum", "local", 300.0, backend_start_s=0.3)


def metrics(fleet: LocalFleet) -> dict[str, float]:
    """Return the metrics without labels."""
    with urllib.request.urlopen(f"http://{fleet.http_address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = (line.split() for line in lines if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value in found}


def wait_for_loads(fleet: LocalFleet, loads: int) -> dict[str, float]:
    deadline = time.monotonic() + 30.0
    while (found := metrics(fleet))["synergai_preloads_total"] < loads:
        assert time.monotonic() < deadline, "nothing was preloaded"
        time.sleep(0.05)
    return found


def test_a_profiled_engine_is_preloaded_on_every_worker(tmp_path: Path) -> None:
    folder, log = tmp_path / "models" / "sum", tmp_path / "events.jsonl"
    folder.mkdir(parents=True)
    save_sum(folder / "model.tflite")
    add_to_dictionary(tmp_path / "profile.db", [PROFILE])
    with LocalFleet(tmp_path / "fleet") as fleet:
        options = ["--dictionary", str(tmp_path / "profile.db"), "--event-log", str(log)]
        fleet.start_gateway(options)
        for name in ("one", "two"):
            fleet.start_agent(
                name,
                models=tmp_path / "models",
                options=["--threads", "1", "--power", "none", "--memory-mb", str(MEMORY_MB)],
            )
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client:
            found = wait_for_loads(fleet, 2)
            assert found["synergai_preload_unused_seconds"] > 0.0
            assert {len(worker.sessions) for worker in client.workers()} == {1}
    events = [json.loads(line).get("event", ["", {}]) for line in log.read_text().splitlines()]
    joined = [event for kind, event in events if kind == "WorkerJoined"]
    assert {told["worker"]["memory_bytes"] for told in joined} == {MEMORY_MB * 1_000_000}
    loaded: list[dict[str, Any]] = [event for kind, event in events if kind == "SessionLoaded"]
    assert len(loaded) == 2
    assert all(each["bytes"] > 1 << 20 for each in loaded)
