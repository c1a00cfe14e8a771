"""Settings of a gateway."""

from pathlib import Path

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from synergai.errors import InvalidSettings
from synergai.runtime.settings import options_of


def test_unknown_policy_is_refused_with_the_known_ones_before_anything_starts() -> None:
    with pytest.raises(InvalidSettings, match=r"--policy: 'nope' is not in .*available.*edf, fifo"):
        GatewaySettings.load({"policy": "nope"})
    assert GatewaySettings.load({"policy": "fifo"}).scheduling.policy == "fifo"


@pytest.mark.parametrize("settings", [GatewaySettings, ServeSettings])
def test_rare_settings_of_connections_are_no_options_but_variables_and_keys(
    settings: type[GatewaySettings | ServeSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def found(file: Path | None = None) -> tuple[float, float]:
        loaded = settings.load(file=file)
        gateway = loaded.gateway if isinstance(loaded, ServeSettings) else loaded
        return gateway.http_keep_alive_s, gateway.max_connection_age_grace_s

    names = ("http_keep_alive_s", "max_connection_age_grace_s")
    assert not any(options_of(settings)[name].description for name in names)
    assert found() == (75.0, 0.0)
    file = tmp_path / "settings.toml"
    file.write_text("http_keep_alive_s = 620\nmax_connection_age_grace_s = 3\n")
    assert found(file) == (620.0, 3.0)
    for name in names:
        monkeypatch.setenv(settings.env_var(name), "9")
    assert found(file) == (9.0, 9.0)
    monkeypatch.setenv(settings.env_var("http_keep_alive_s"), "0.5")
    with pytest.raises(InvalidSettings, match=r"HTTP_KEEP_ALIVE_S: '0\.5' is not"):
        found()
