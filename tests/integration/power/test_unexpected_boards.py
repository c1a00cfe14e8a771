"""Boards whose description is not as expected serve all the same, as far as it is understood."""

import logging
from collections.abc import Callable

import pytest

from synergai.errors import NotSupported
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import AGX_XAVIER
from worker_agent.power.controller import Reading
from worker_agent.power.nvpmodel import CONF
from worker_agent.power.selection import AUTO, open_controller

MODES = len(AGX_XAVIER.modes)


def edit(old: str, new: str) -> Callable[[str], bytes]:
    return lambda text: text.replace(old, new).encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
    ],
)
def test_other_ways_to_write_the_same_are_understood(
    agx: EmulatedBoard, change: Callable[[str], bytes]
) -> None:
    agx.files.path(CONF).write_bytes(change(agx.files.read(CONF)))
    for name in (AUTO, "nvpmodel"):
        power = open_controller(name, agx.files)
        assert len(power.modes()) == MODES
        assert power.read() == Reading("MODE_15W")


@pytest.mark.parametrize(
    ("change", "modes", "fault"),
    [
        (edit("EMC MAX_FREQ 0\n", "EMC MAX_FREQ 0\nPVA0 MAX_FREQ 1\n"), MODES - 1, "PVA0 MAX"),
        (lambda text: text.encode("utf-16"), 0, "line 1 is"),
        (lambda _: b"", 0, "no POWER_MODEL"),
    ],
)
def test_what_is_not_understood_is_warned_of_once_and_an_error_if_nothing_is_left(
    agx: EmulatedBoard,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[str], bytes],
    modes: int,
    fault: str,
) -> None:
    agx.files.path(CONF).write_bytes(change(agx.files.read(CONF)))
    power = open_controller(AUTO, agx.files)
    assert len(power.modes()) == modes
    power.read()
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert fault in warnings[0]
    if not modes:
        with pytest.raises(NotSupported, match=r"/etc/nvpmodel\.conf: "):
            open_controller("nvpmodel", agx.files)


def test_a_board_without_its_program_has_no_modes(agx: EmulatedBoard) -> None:
    agx.files.path("/usr/sbin/nvpmodel").unlink()
    assert open_controller(AUTO, agx.files).modes() == ()
    with pytest.raises(NotSupported, match="there is no /usr/sbin/nvpmodel"):
        open_controller("nvpmodel", agx.files)


def test_a_conf_that_cannot_be_read_has_no_modes(agx: EmulatedBoard) -> None:
    agx.files.path(CONF).unlink()
    agx.files.path(CONF).mkdir()
    assert open_controller(AUTO, agx.files).modes() == ()
    with pytest.raises(NotSupported, match="Is a directory"):
        open_controller("nvpmodel", agx.files)


def test_modes_that_were_asked_for_are_not_left_out_silently(agx: EmulatedBoard) -> None:
    agx.files.path(CONF).write_text("")
    with pytest.raises(NotSupported, match="no POWER_MODEL"):
        open_controller(AUTO, agx.files, ["MAXN"])


def test_a_mode_that_sets_no_clock_is_read_back_by_its_cores(agx: EmulatedBoard) -> None:
    lines = agx.files.read(CONF).splitlines()
    agx.files.path(CONF).write_text(
        "\n".join(line for line in lines if not line.startswith("CPU_DENVER"))
    )
    assert open_controller(AUTO, agx.files).read() == Reading("MODE_15W")
