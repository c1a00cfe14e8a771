"""An emulated board, measured in its power modes by real LoadGen runs."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.dictionary.files import load_dictionary
from profiler.measuring.cli import profile
from profiler.measuring.measurer import ProfiledModes
from profiler.measuring.profiler_settings import ProfilerSettings
from profiler.zoo import recipes as zoo
from synergai.domain import Configuration
from synergai.errors import InvalidInput, Unavailable
from tests.emulated_board.board import EmulatedBoard
from worker_agent.power import nvpmodel
from worker_agent.power.controller import ModeRefused, SwitchFailed, SwitchTiming
from worker_agent.power.nvpmodel import NvpmodelController

MODES = ["MODE_20W_2CORE", "MODE_10W_DESKTOP"]


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = SwitchTiming(settle=0.0, timeout=0.1, interval=0.02)
    monkeypatch.setattr(nvpmodel, "SwitchTiming", lambda: timing)


def mode_of(board: EmulatedBoard) -> str:
    return NvpmodelController(board.files).read().mode


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that is not ignored, as SIGHUP is under nohup."""
    previous = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, previous)


def test_a_board_whose_line_is_lost_is_left_in_its_own_mode(
    nx: EmulatedBoard, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        assert mode_of(nx) == MODES[0]
        os.kill(os.getpid(), number)

    monkeypatch.setattr("profiler.measuring.measurer.measure", interrupted)
    zoo.build("onnx_identity", tmp_path / "models")
    own = mode_of(nx)
    settings = {
        "models": tmp_path / "models",
        "root": nx.root,
        "modes": MODES[0],
        "dictionary": tmp_path / "dictionary.db",
    }

    with pytest.raises(KeyboardInterrupt):
        profile(ProfilerSettings.load(settings))

    assert mode_of(nx) == own != MODES[0]


def test_a_board_is_profiled_in_each_mode_and_left_in_its_own(
    nx: EmulatedBoard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo.build("onnx_identity", tmp_path / "models")
    settings = {
        "models": tmp_path / "models",
        "root": nx.root,
        "modes": ",".join(MODES),
        "queries": "10",
        "min_duration": "0.1",
        "worker_class": "xavier-nx",
        "dictionary": tmp_path / "dictionary.db",
        "output": tmp_path / "logs",
        "as_json": True,
    }
    profile(ProfilerSettings.load(settings))

    entries = {entry.configuration: entry for entry in load_dictionary(tmp_path / "dictionary.db")}
    assert set(entries) == {Configuration(1, mode) for mode in MODES}
    for entry in entries.values():
        assert entry.watts == pytest.approx(5.06, rel=0.01)
        assert entry.joules == pytest.approx(entry.watts / entry.qps)
    records = json.loads(capsys.readouterr().out)
    assert [(record["power_mode"], record["joules"] > 0) for record in records] == [
        (mode, True) for mode in MODES
    ]
    assert nx.calls().count("nvpmodel -m 6") == 1
    assert nx.calls().count("nvpmodel -m 5") == 1
    assert mode_of(nx) == "MODE_10W_4CORE"


def test_all_modes_without_a_reboot_are_measured_unless_some_are_named(agx: EmulatedBoard) -> None:
    with ProfiledModes("auto", [], agx.files) as modes:
        names = {mode.name for mode in modes.modes}
    assert "MAXN" in names
    assert "MODE_10W" not in names  # it powers another part of the GPU
    with pytest.raises(ModeRefused, match="MODE_10W: needs a reboot"):
        ProfiledModes("auto", ["MODE_10W"], agx.files)
    with pytest.raises(InvalidInput, match="no power mode 'MODE_99W'"):
        ProfiledModes("auto", ["MODE_99W"], agx.files)


def test_figures_are_discarded_if_another_program_switched(agx: EmulatedBoard) -> None:
    with ProfiledModes("auto", [], agx.files) as modes:
        modes.activate("MAXN")
        modes.check("MAXN")
        NvpmodelController(agx.files).switch("MODE_30W_ALL")
        with pytest.raises(Unavailable, match=r"changed from MAXN .*MODE_30W_ALL"):
            modes.check("MAXN")


def test_a_board_that_cannot_be_put_back_is_reported(
    agx: EmulatedBoard, caplog: pytest.LogCaptureFixture
) -> None:
    with ProfiledModes("auto", ["MAXN"], agx.files) as modes:
        modes.activate("MAXN")
        agx.inject_fault("fails")
    assert "cannot restore the power mode" in caplog.text


def test_a_mode_that_is_not_reached_is_not_measured(agx: EmulatedBoard) -> None:
    with ProfiledModes("auto", ["MAXN"], agx.files) as modes:
        agx.inject_fault("half-cores", once=True)
        with pytest.raises(SwitchFailed):
            modes.activate("MAXN")
