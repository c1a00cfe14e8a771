"""The page of a recording: one file, whose policy allows its own script only."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from profiler.reports.recorded_page import render_recording
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput
from synergai.fleet_page import SCRIPTS, read_file
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.staged_runs import ENGINES, write_run


def test_recording_needs_no_other_file(tmp_path: Path) -> None:
    page = render_recording(write_run(tmp_path / "run.jsonl"))
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page


def test_names_cannot_end_the_data(tmp_path: Path) -> None:
    page = render_recording(write_run(tmp_path / "run.jsonl"))
    [data] = re.findall(r'id="recording">(.*?)</script>', page)
    assert "<" not in data
    engines = {
        record["engine"]
        for batch in json.loads(data)["batches"]
        for record in batch["records"]
        if record["kind"] == "job"
    }
    assert engines == set(ENGINES)


def test_log_without_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    with EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1):
        pass
    with pytest.raises(InvalidInput, match="has no events"):
        render_recording(path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_set_names_as_text_only(name: str) -> None:
    script = read_file(name)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
