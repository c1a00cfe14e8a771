"""The demo's model directory and report."""

from pathlib import Path

import pytest

from demo import engines, report
from demo.__main__ import ENGINES
from synergai.models.directory import ModelDirectory
from synergai.profiles.dictionary import DISTURBED, MEASURED
from tests.cores import new_entry


def test_demo_shares_built_engines_and_leaves_the_users_own_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "is_built", lambda *_: True)
    for name in (*ENGINES, "the_users"):
        (tmp_path / "built" / name).mkdir(parents=True)
        (tmp_path / "built" / name / "model.onnx").write_bytes(b"model")
    engines.provide(ENGINES, tmp_path / "built", tmp_path / "own")
    found = ModelDirectory(tmp_path / "own").engines()
    assert {each.name for each in found} == set(ENGINES)
    assert all(each.file.stat().st_nlink == 2 for each in found)


def test_report_names_the_profiles_that_other_processes_disturbed() -> None:
    calm, disturbed = (
        new_entry("digits", name, 100.0, label=label)
        for name, label in (("cloud", MEASURED), ("edge", DISTURBED))
    )
    assert report.disturbance([calm]) == ""
    assert "disturbed the profiling of digits on edge" in report.disturbance([calm, disturbed])
