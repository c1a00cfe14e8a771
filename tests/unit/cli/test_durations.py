"""Durations and times of day on the command line."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.gateway_settings import GatewaySettings
from profiler.loadgen.loadgen_settings import LoadSettings
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.cli.options import parse_duration, parse_instant
from synergai.errors import InvalidSettings
from synergai.runtime.settings import options_of
from worker_agent.agent_settings import AgentSettings

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20.0),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("90s", 90.0),
        ("30m", 1800.0),
        ("30min", 1800.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1d", 86_400.0),
        ("250ms", 0.25),
        ("1.5H", 5400.0),
    ],
)
def test_duration_is_in_seconds_unless_it_has_units(text: str, seconds: float) -> None:
    assert parse_duration(text, "--qos") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "h", "30m2h", "1.2.3s"])
def test_anything_else_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InvalidSettings, match=r"--qos: .* is not a duration: .*ms.*s.*m.*h"):
        parse_duration(text, "--qos")


def test_a_wrong_duration_among_settings_names_its_option() -> None:
    with pytest.raises(InvalidSettings, match=r"^--duration: 'soon' is not a duration: write sec"):
        LoadSettings.load({"engine": "x", "duration": "soon"})


def test_no_setting_in_seconds_takes_only_numbers() -> None:
    plain = [
        f"{model.__name__}.{name}"
        for model in (GatewaySettings, AgentSettings, ProfilerSettings, LoadSettings)
        for name, option in options_of(model).items()
        if (name.endswith("_s") or "duration" in name or "in seconds" in option.description)
        and option.metavar != "DURATION"
    ]
    assert plain == []


def test_time_of_day_is_the_next_one() -> None:
    local = NOW.astimezone()
    later, earlier = local + timedelta(minutes=5), local - timedelta(minutes=5)
    assert parse_instant(f"{later:%H:%M}", "--by", NOW) - NOW == timedelta(minutes=5)
    assert parse_instant(f"{earlier:%H:%M}", "--by", NOW).astimezone().date() > local.date()


def test_date_and_time_may_have_a_zone() -> None:
    assert parse_instant("2026-11-22T12:30+00:00", "--by", NOW) - NOW == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2026-11-22T11:00+00:00", "has passed"), ("25:00", "not a time"), ("noon", "not a time")],
)
def test_instant_must_be_a_time_to_come(text: str, expected: str) -> None:
    with pytest.raises(InvalidSettings, match=expected):
        parse_instant(text, "--by", NOW)
