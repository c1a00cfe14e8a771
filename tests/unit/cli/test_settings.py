"""Settings on the command line: durations, and panels of the help."""

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from profiler.loadgen.loadgen_settings import LoadSettings
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.cli.options import parse_duration
from synergai.errors import InvalidSettings
from synergai.runtime.settings import Settings, options_of
from worker_agent.agent_settings import AgentSettings


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


def test_no_setting_in_seconds_takes_only_numbers() -> None:
    plain = [
        f"{model.__name__}.{name}"
        for model in (GatewaySettings, AgentSettings, ProfilerSettings, LoadSettings)
        for name, option in options_of(model).items()
        if (name.endswith("_s") or "duration" in name or "in seconds" in option.description)
        and option.metavar != "DURATION"
    ]
    assert plain == []


@pytest.mark.parametrize("settings", [GatewaySettings, ServeSettings])
def test_panels_of_the_help_have_options_once_and_leave_the_common_ones(
    settings: type[Settings],
) -> None:
    shown = {name for name, option in options_of(settings).items() if option.description}
    placed = [name for names in settings.panels.values() for name in names]
    assert set(placed) < shown
    assert len(placed) == len(set(placed))
    assert len(shown) - len(placed) <= 8
