"""Help of commands whose options are settings."""

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from synergai.runtime.settings import Settings, options_of


@pytest.mark.parametrize("settings", [GatewaySettings, ServeSettings])
def test_panels_of_the_help_have_options_once_and_leave_the_common_ones(
    settings: type[Settings],
) -> None:
    shown = {name for name, option in options_of(settings).items() if option.description}
    placed = [name for names in settings.panels.values() for name in names]
    assert set(placed) < shown
    assert len(placed) == len(set(placed))
    assert len(shown) - len(placed) <= 8
