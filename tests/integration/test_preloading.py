"""Profiled engines are preloaded on every worker, within its memory."""

import json
from pathlib import Path
from typing import Any

import synergai
from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from tests.cores import new_entry
from tests.tiny_tflite import save_sum
from tests.waiting import wait_until

MEMORY_MB = 4096
PROFILE = new_entry("sum", "local", 300.0, backend_start_s=0.3)


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
            wait_until(lambda: [len(worker.sessions) for worker in client.workers()] == [1, 1])
    events = [json.loads(line).get("event", ["", {}]) for line in log.read_text().splitlines()]
    joined = [event for kind, event in events if kind == "WorkerJoined"]
    assert {told["worker"]["memory_bytes"] for told in joined} == {MEMORY_MB * 1_000_000}
    loaded: list[dict[str, Any]] = [event for kind, event in events if kind == "SessionLoaded"]
    assert len(loaded) == 2
    assert all(each["bytes"] > 1 << 20 for each in loaded)
