"""The record of workers that answered falsely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.fleet import distrust as module
from gateway.fleet.distrust import FOLDER, Distrust, readmit
from gateway.settings import GatewaySettings
from synergai.domain import WorkerId
from synergai.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pathlib import Path

A, B = WorkerId("a"), WorkerId("b")


async def test_restart_of_the_gateway_readmits_no_worker(tmp_path: Path) -> None:
    record = Distrust(tmp_path)
    assert record.reason(A) == ""
    record.add(A, "it lied")
    assert record.reason(A) == "it lied"
    await record.write()
    assert Distrust(tmp_path).reason(A) == "it lied"
    assert await record.look() == set()


async def test_command_readmits_a_worker(tmp_path: Path) -> None:
    record = Distrust(tmp_path)
    record.add(A, "it lied")
    record.add(B, "it lied")
    await record.write()
    arguments = ["workers", "readmit", "a", "--state", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).stdout == "a is readmitted\n"
    assert await record.look() == {A}
    assert (record.reason(A), record.reason(B)) == ("", "it lied")
    with pytest.raises(NotFound, match="'a' is not distrusted"):
        readmit(tmp_path, "a")
    with pytest.raises(InvalidInput):
        readmit(tmp_path, "../a")


async def test_worker_whose_record_cannot_be_written_stays_distrusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_text("not a folder")
    record = Distrust(tmp_path)
    record.add(A, "it lied")
    await record.write()
    assert "cannot record that worker a is distrusted" in caplog.text
    assert await record.look() == set()
    assert record.reason(A)


async def test_damaged_record_still_distrusts(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "a.json").write_text("{")
    (folder / "no id.json").write_text("{}")
    record = Distrust(tmp_path)
    assert record.reason(A) == "it answered falsely"
    assert len(record) == 1


async def test_number_of_records_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DISTRUSTED", 3)
    record = Distrust(tmp_path)
    for number in range(5):
        record.add(WorkerId(f"w{number}"), "it lied")
        await record.write()
    assert sorted(path.stem for path in (tmp_path / FOLDER).iterdir()) == ["w2", "w3", "w4"]
    assert len(Distrust(tmp_path)) == 3


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5", 0.5), ("0", 0.0), ("100%", 1.0)])
def test_share_may_be_a_percentage(text: str, share: float) -> None:
    assert GatewaySettings.load({"verify_share": text}).verify_share == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "-1%", "many", "%", "2"])
def test_invalid_share_is_refused(text: str) -> None:
    expected = f"--verify-share: {text!r} is not a share from 0% to 100%"
    with pytest.raises(InvalidInput, match=expected):
        GatewaySettings.load({"verify_share": text})
