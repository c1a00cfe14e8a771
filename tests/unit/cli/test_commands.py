"""Checks of options before a command starts to work."""

from pathlib import Path

import pytest

from synergai.cli.commands import check_plot
from synergai.errors import InvalidSettings


def test_plot_that_cannot_be_drawn_is_refused_before_the_run(tmp_path: Path) -> None:
    check_plot(tmp_path / "new" / "plot.PNG")
    with pytest.raises(InvalidSettings, match=r"--plot: .*out.txt must end in .png"):
        check_plot(tmp_path / "out.txt")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSettings, match="cannot be made"):
        check_plot(tmp_path / "file" / "plot.png")
