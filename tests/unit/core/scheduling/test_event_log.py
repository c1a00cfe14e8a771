"""The event log on a failing disk, and logs of earlier releases."""

import json
import math
import time
from pathlib import Path

import pytest

from profiler.simulator.recording import replay
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import JobArrived, TimePassed
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import EngineName, Job, JobId
from synergai.errors import InvalidInput, Unavailable
from synergai.profiles.dictionary import ConfigurationDictionary

ALWAYS_FULL = Path("/dev/full")


def make_log(path: Path) -> EventLog:
    return EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1)


def test_full_disk_closes_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    with make_log(ALWAYS_FULL) as log:
        for second in range(40_000):  # exceeds the buffer
            log.record(TimePassed(), float(second), [])
    assert [record.message for record in caplog.records] == [
        "event log /dev/full closed: No space left on device"
    ]


def test_full_disk_on_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with make_log(ALWAYS_FULL) as log:
        log.record(TimePassed(), 1.0, [])
    assert "event log /dev/full closed" in caplog.text


def test_unwritable_path_raises_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot write .*: No such file"):
        make_log(tmp_path / "missing" / "log")


def test_line_that_was_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    arrived = JobArrived(Job(id=JobId("j"), engine=EngineName("e"), queries=1, arrival=0.0), 1)
    with make_log(tmp_path / "log") as log:
        log.record(arrived, 0.0, [])
        log.record(arrived, 1.0, [])
    text = (tmp_path / "log").read_text()
    (tmp_path / "log").write_text(text[:-20])
    [step] = replay(tmp_path / "log", time.thread_time)
    assert step.at == 0.0


@pytest.mark.parametrize(
    "line", ["{}", '{"at":1,"event":["Nothing",{}],"commands":[]}', '{"at":1,"event":7}', "[]", "x"]
)
def test_line_that_is_no_event_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    with make_log(tmp_path / "log"):
        pass
    with (tmp_path / "log").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InvalidInput, match=r"log, line 2: not an event"):
        list(replay(tmp_path / "log", time.thread_time))


def test_settings_out_of_range_are_rejected(tmp_path: Path) -> None:
    with make_log(tmp_path / "log"):
        pass
    text = (tmp_path / "log").read_text()
    (tmp_path / "log").write_text(text.replace('"max_faults":3', '"max_faults":0'))
    with pytest.raises(InvalidInput, match="max_faults"):
        list(replay(tmp_path / "log", time.thread_time))


HEAD = {"format": 1, "epoch": 1, "settings": {}, "dictionary": []}
STEP = {"at": 1.0, "event": ["TimePassed", {}], "commands": []}


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        (HEAD | {"epoch": "one"}, r"\.epoch"),
        (HEAD | {"settings": []}, r"\.settings"),
        (HEAD | {"dictionary": 7}, r"\.dictionary"),
        (HEAD | {"dictionary": [{"engine": 1}]}, r"\.engine"),
        ([], "not an event log"),
    ],
)
def test_head_of_wrong_types_is_invalid_input(tmp_path: Path, head: object, complaint: str) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(head) + "\n")
    with pytest.raises(InvalidInput, match=complaint):
        list(replay(path, time.thread_time))


@pytest.mark.parametrize(
    "step",
    [
        json.dumps(STEP | {"at": None}),
        json.dumps(STEP | {"at": "1"}),
        json.dumps(STEP | {"at": math.nan}),
        json.dumps(STEP | {"at": math.inf}),
        "[" * 100_000,
    ],
)
def test_event_of_wrong_types_is_invalid_input(tmp_path: Path, step: str) -> None:
    path = tmp_path / "log"
    path.write_text(f"{json.dumps(HEAD)}\n{json.dumps(STEP)}\n{step}\n")
    with pytest.raises(InvalidInput, match="line 3"):
        list(replay(path, time.thread_time))


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    job = {"id": "NAME", "engine": "e", "queries": 1, "arrival": 0.0}
    step = STEP | {"event": ["JobArrived", {"job": job, "ready": 1}]}
    path.write_bytes(f"{json.dumps(HEAD)}\n{json.dumps(step)}\n".encode().replace(b"NAME", b"\xff"))
    [found] = replay(path, time.thread_time)
    assert isinstance(found.event, JobArrived)
    assert found.event.job.id == "\ufffd"
