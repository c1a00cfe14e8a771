"""Checks of options before a command starts to work."""

from pathlib import Path

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from synergai.cli.commands import check_plot
from synergai.errors import InvalidSettings
from synergai.runtime.settings import Settings, options_of


def test_plot_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    check_plot(tmp_path / "new" / "plot.PNG")
    with pytest.raises(InvalidSettings, match=r"--plot: .*out.txt must end in .png"):
        check_plot(tmp_path / "out.txt")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings, match="cannot be made"):
        check_plot(tmp_path / "file" / "plot.png")


@pytest.mark.parametrize("settings", [GatewaySettings, ServeSettings])
def test_panels_of_the_help_have_options_once_and_leave_the_common_ones(
    settings: type[Settings],
) -> None:
    shown = {name for name, option in options_of(settings).items() if option.description}
    placed = [name for names in settings.panels.values() for name in names]
    assert set(placed) < shown
    assert len(placed) == len(set(placed))
    assert len(shown) - len(placed) <= 8
