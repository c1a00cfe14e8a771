"""Output of ``synergai workers`` and ``synergai routes``."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from profiler.planning.plan_case import read_fleet
from synergai.cli.fleet import print_fleet, routes_app, show_links, show_workers
from synergai.client.fleet import WorkerLink, WorkerProfile, WorkerState, WorkerStatus
from synergai.domain import Configuration, EngineName, Exit, Session, WorkerClass, WorkerId
from synergai.errors import NotFound
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import new_entry
from tests.engines import new_engine

NAMES = ("onnx_mobilenet_op11", "tflite_mobilenet_quant", "onnx_ssd_mobilenet_op11")


def profile_of(engine: EngineName) -> ProfileEntry:
    return new_entry(
        engine,
        "xavier-nx",
        100.0,
        Configuration(threads=4),
        label="reconstructed",
        measured_at=(datetime.now(UTC) - timedelta(days=3, hours=1)).isoformat(),
    )


def worker(worker_id: str, *, fault: str = "", mode: str = "") -> WorkerStatus:
    """Return a worker with three engines: the first is loaded, the second not profiled."""
    loaded, unprofiled, _ = (EngineName(name) for name in NAMES)
    return WorkerStatus(
        id=WorkerId(worker_id),
        worker_class=WorkerClass("xavier-nx"),
        state=WorkerState.DRAINING,
        cores=16,
        memory_bytes=1 << 33,
        configurations=(),
        engines=tuple(new_engine(name, fault=fault if name == NAMES[-1] else "") for name in NAMES),
        sessions=(Session(loaded, Configuration(threads=4, power_mode=mode)),),
        queries_done=1_234_567,
        last_heard_s=0.123,
        unprofiled=(unprofiled,),
        profiles=(WorkerProfile(profile_of(loaded), 1.0834),),
        power_mode=mode,
        meter="ina3221",
        watts=12.1,
    )


def test_fleet_fits_80_columns_without_broken_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    monkeypatch.setenv("COLUMNS", "80")

    fault = "the model file is truncated"
    show_workers([worker("cloud-1"), worker("board-in-lab-2", mode="MODE_15W", fault=fault)])

    out = capsys.readouterr().out
    whole = ("cloud-1", "board-in-lab-2", *NAMES, "draining", "MODE_15W", "1,234,567", "ina3221")
    for text in (
        *whole,
        "reconstructed",
        "3 d",
        "pace 1.08",
        "threads=4,mode=MODE_15W",
        "not profiled",
        fault,
    ):
        assert text in out


def test_fast_links_have_no_exponents_and_limits_the_unit_of_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = WorkerLink(to_bytes_per_s=7_703_750_000.0, from_bytes_per_s=6_250.0)
    limited = replace(worker("nx-1"), link=link, memory_limit_bytes=100_000_000)
    show_links([limited])
    shown = capsys.readouterr().out
    assert "61,630 Mbit/s" in shown
    assert "0.05 Mbit/s" in shown
    print_fleet([limited])
    written = capsys.readouterr().out
    assert "mbit_s = 61630\n" in written
    assert "memory_mb = 100\n" in written
    show_workers([limited])
    assert "of 100 MB" in capsys.readouterr().out


def test_fleet_file_has_the_rates_of_early_exits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    exit_ = Exit(output="p", threshold=0.9, rate=0.625)
    staged = structs.replace(new_engine("net.s0-3"), exit=exit_)
    faulty = structs.replace(staged, name=EngineName("other.s0-3"), fault="it differs")
    print_fleet([replace(worker("nx-1"), engines=(staged, faulty)), worker("nx-2")])
    file = tmp_path / "fleet.toml"
    file.write_text(capsys.readouterr().out)
    assert read_fleet(file).exits == {"net.s0-3": 0.625}


def test_engine_that_has_no_stages_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergai.cli.gateway_client.GatewayAddress.call", lambda *_: [])
    result = CliRunner().invoke(routes_app, ["nope"])
    assert isinstance(result.exception, NotFound)
    assert "'nope' has no stages" in str(result.exception)
