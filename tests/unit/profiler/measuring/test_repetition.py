"""Repetition of disturbed measurements."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from profiler.measuring import commands
from profiler.measuring.cli import print_measurements
from profiler.measuring.measurement import Measurement
from profiler.measuring.measurer import measure_with_repeats
from profiler.measuring.profiler_settings import ProfilerSettings
from profiler.measuring.single_stream import SingleStreamResult
from synergai.domain import Configuration, EngineName, Session
from synergai.errors import EngineUnusable
from synergai.profiles.dictionary import DISTURBED, MEASURED
from tests.cores import new_entry

A, B = (Session(EngineName(name), Configuration(1)) for name in "ab")


def a_measurement(session: Session, background: float) -> Measurement:
    entry = new_entry(
        session.engine,
        "x86",
        100.0 * (1 - background),
        session.configuration,
        label=DISTURBED if background > 0.05 else MEASURED,
    )
    result = SingleStreamResult(
        validity="VALID", queries=9, qps=9.0, latency_p50_s=1, latency_p90_s=1, latency_p99_s=1
    )
    return Measurement(entry=entry, single_stream=result, logs=Path(), background=background)


class Machine:
    """A machine whose load is known in advance: per session, that of each measurement.

    None stands for a measurement that fails.
    """

    def __init__(self, **loads: list[float | None]) -> None:
        self.loads = loads
        self.rounds: list[list[str]] = []
        self.kept: list[Measurement] = []
        self.skipped: list[str] = []

    def measure(self, sessions: Sequence[Session]) -> Iterator[Measurement | EngineUnusable]:
        self.rounds.append([session.engine for session in sessions])
        for session in sessions:
            load = self.loads[session.engine].pop(0)
            if load is None:
                yield EngineUnusable(f"cannot load {session.engine}")
            else:
                yield a_measurement(session, load)

    def run(
        self,
        repeats: int = 0,
        offer: Mock | None = None,
        *,
        required: bool = False,
        measured: str = "ab",
    ) -> list[float]:
        found = measure_with_repeats(
            self.measure,
            [A, B],
            required=required,
            repeats=repeats,
            offer=offer or Mock(return_value=False),
            keep=self.kept.append,
            skip=lambda error: self.skipped.append(str(error)),
        )
        assert [each.entry.engine for each in found] == list(measured)
        return [each.background for each in found]


def test_undisturbed_measurements_are_not_repeated() -> None:
    offer = Mock()
    machine = Machine(a=[0.01], b=[0.0])
    assert machine.run(repeats=3, offer=offer) == [0.01, 0.0]
    assert len(machine.rounds) == 1
    offer.assert_not_called()


def test_only_disturbed_ones_are_repeated_and_the_best_kept() -> None:
    machine = Machine(a=[0.5, 0.6, 0.02], b=[0.0])
    assert machine.run(repeats=2) == [0.02, 0.0]
    assert machine.rounds == [["a", "b"], ["a"], ["a"]]
    assert [each.background for each in machine.kept] == [0.5, 0.0, 0.02]


def test_repetition_is_offered_once_the_given_number_is_used_up() -> None:
    offer = Mock(side_effect=[True, False])
    machine = Machine(a=[0.5, 0.4, 0.3], b=[0.3, 0.0])
    assert machine.run(repeats=1, offer=offer) == [0.3, 0.0]
    [first, second] = offer.call_args_list
    assert [[each.entry.engine for each in call.args[0]] for call in (first, second)] == [
        ["a"],
        ["a"],
    ]


def test_engine_that_fails_is_skipped_unless_it_is_required() -> None:
    machine = Machine(a=[None], b=[0.0])
    assert machine.run(measured="b") == [0.0]
    assert machine.skipped == ["cannot load a"]
    with pytest.raises(EngineUnusable, match="cannot load a"):
        Machine(a=[None], b=[0.0]).run(required=True)


@pytest.mark.parametrize("required", [False, True])
def test_failed_repetition_leaves_the_measurement_before_it(required: bool) -> None:
    machine = Machine(a=[0.5, None], b=[0.0])
    assert machine.run(repeats=1, required=required) == [0.5, 0.0]
    assert machine.skipped == ["cannot load a"]


def test_last_error_is_raised_if_nothing_was_measured() -> None:
    with pytest.raises(EngineUnusable, match="cannot load b"):
        Machine(a=[None], b=[None]).run()


@pytest.mark.parametrize(
    ("terminal", "repeats", "answer", "repeated", "asked"),
    [
        (True, None, True, True, True),
        (True, None, False, False, True),
        (True, 0, True, False, False),
        (False, None, True, False, False),
    ],
)
def test_a_person_is_asked_only_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    repeats: int | None,
    answer: bool,
    repeated: bool,
    asked: bool,
) -> None:
    confirm = Mock(return_value=answer)
    monkeypatch.setattr("typer.confirm", confirm)
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: terminal, raising=False)
    settings = ProfilerSettings(repeat_disturbed=repeats)
    assert commands.offer_to_repeat(settings, [a_measurement(A, 0.31)]) is repeated
    assert confirm.called is asked


def test_disturbed_measurement_is_told_with_its_load(capsys: pytest.CaptureFixture[str]) -> None:
    commands.offer_to_repeat(ProfilerSettings(repeat_disturbed=0), [a_measurement(A, 0.31)])
    out, err = capsys.readouterr()
    assert out == ""
    assert "disturbed, other processes took 31.0% of the machine's CPU time" in err


def test_a_line_below_the_table_says_why_latencies_are_invalid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    valid = a_measurement(A, 0.0)
    result = dataclasses.replace(valid.single_stream, validity="INVALID", invalid_because="few")
    print_measurements([valid, dataclasses.replace(valid, single_stream=result)])
    remarks = [line for line in capsys.readouterr().out.splitlines() if "few" in line]
    assert remarks == [f"a, {A.configuration}: the latencies are invalid for LoadGen: few"]


def test_the_table_shows_the_highest_rate_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    single = a_measurement(A, 0.0)
    entry = msgspec.structs.replace(single.entry, batch_qps=(20.0, 45.0, 40.0))
    print_measurements([single, dataclasses.replace(single, entry=entry)])
    lines = capsys.readouterr().out.splitlines()
    assert "in batches" in lines[0]
    assert " 45 of 4 " in lines[-1]
