"""Default paths, which gateway, profiler and commands share."""

import pwd
from pathlib import Path

import pytest

from gateway.gateway_settings import GatewaySettings
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai.runtime.paths import agent_state, default_dictionary, dictionary_path, gateway_state
from worker_agent.agent_settings import AgentSettings


@pytest.fixture(params=["systemd", "xdg", "home"])
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    match request.param:
        case "systemd":
            monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")
            return Path("/var/lib/one")
        case "xdg":
            monkeypatch.setenv("XDG_STATE_HOME", "/states")
            return Path("/states/synergai/gateway")
    monkeypatch.setenv("HOME", "/home/me")
    return Path("/home/me/.local/state/synergai/gateway")


def test_agent_state_is_next_to_the_gateways(state: Path) -> None:
    beside = state if state.name == "one" else state.with_name("agent")
    assert AgentSettings.load({}).state == beside


def test_profiler_writes_the_dictionary_that_the_gateway_reads(state: Path) -> None:
    gateway = GatewaySettings.load({})
    assert gateway.state == state
    assert gateway.dictionary is None
    assert ProfilerSettings.load({}).dictionary == dictionary_path(gateway.state)
    assert default_dictionary() == state / "dictionary.db"


def test_user_without_home_and_name_has_a_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_user(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_user)
    for variable in ("STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert gateway_state() == Path("/var/lib/synergai/gateway")
    assert agent_state() == Path("/var/lib/synergai/agent")
