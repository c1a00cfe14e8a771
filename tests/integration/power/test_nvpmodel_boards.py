"""All modes and faults of both boards, on their emulation with real processes."""

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from tests.emulated_board.board import EMC, STATUS, TPC, EmulatedBoard
from tests.emulated_board.kinds import KINDS
from worker_agent.power.controller import ModeRefused, Reading, SwitchFailed, SwitchTiming
from worker_agent.power.files import parse_cpus
from worker_agent.power.nvpmodel import BoardPrograms, NvpmodelController

# The thesis's Table 5.2: board, its mode, highest clock in MHz, cores, watts; and the board's name.
TABLE_5_2 = [
    ("agx-xavier", 1, 1200, 8, 30, "MODE_30W_ALL"),
    ("agx-xavier", 2, 1450, 6, 30, "MODE_30W_6CORE"),
    ("agx-xavier", 3, 1780, 4, 30, "MODE_30W_4CORE"),
    ("agx-xavier", 4, 2100, 2, 30, "MODE_30W_2CORE"),
    ("agx-xavier", 5, 2188, 4, 15, "MODE_15W_DESKTOP"),
    ("agx-xavier", 6, 2266, 8, 0, "MAXN"),
    ("xavier-nx", 1, 1200, 4, 10, "MODE_10W_4CORE"),
    ("xavier-nx", 2, 1400, 4, 15, "MODE_15W_4CORE"),
    ("xavier-nx", 3, 1400, 4, 20, "MODE_20W_4CORE"),
    ("xavier-nx", 4, 1400, 6, 15, "MODE_15W_6CORE"),
    ("xavier-nx", 5, 1400, 6, 20, "MODE_20W_6CORE"),
    ("xavier-nx", 6, 1500, 2, 10, "MODE_10W_2CORE"),
    ("xavier-nx", 7, 1900, 2, 15, "MODE_15W_2CORE"),
    ("xavier-nx", 8, 1900, 2, 20, "MODE_20W_2CORE"),
    ("xavier-nx", 9, 1900, 4, 10, "MODE_10W_DESKTOP"),
]
CPU = "/sys/devices/system/cpu"


def controller(
    board: EmulatedBoard, query_s: float = 30.0, switch_s: float = 30.0
) -> NvpmodelController:
    """Return a controller with generous timeouts, since the machine may be busy."""
    return NvpmodelController(
        board.files,
        programs=BoardPrograms(board.files, query_s=query_s, switch_s=switch_s),
        timing=SwitchTiming(settle=0.0, timeout=0.1, interval=0.02),
    )


def status_of(board: EmulatedBoard) -> int:
    return int(board.files.read(STATUS).removeprefix("pmode:").split()[0])


@pytest.mark.parametrize(
    ("kind", "_thesis_mode", "mhz", "cores", "watts", "name", "jetpack"),
    [*((*row, 5) for row in TABLE_5_2), *((*row, 4) for row in TABLE_5_2[::6])],
)
def test_every_mode_of_table_5_2_is_switched_to_and_read_back(
    kind: str,
    _thesis_mode: int,
    mhz: int,
    cores: int,
    watts: int,
    name: str,
    jetpack: int,
    tmp_path: Path,
) -> None:
    board = EmulatedBoard.create(KINDS[kind], tmp_path / "board", jetpack)
    power = controller(board)
    listed = next(mode for mode in power.modes() if mode.name == name)
    before = power.read().mode

    switched = power.switch(name)

    assert (listed.cores, listed.budget_w, listed.refused) == (cores, watts, "")
    assert switched.mode == power.read().mode == name
    assert (switched.seconds > 0) == (name != before)
    highest = int(board.files.read(f"{CPU}/cpu0/cpufreq/scaling_max_freq")) / 1000
    assert highest == pytest.approx(mhz, abs=77)  # one step of the clock
    assert listed.max_mhz in (0, pytest.approx(mhz, abs=21))  # the thesis rounds
    assert parse_cpus(board.files.read(f"{CPU}/online")) == set(range(cores))


def test_modes_and_ids_come_from_the_boards_own_file(agx: EmulatedBoard) -> None:
    conf = agx.files.read("/etc/nvpmodel.conf").replace("ID=7 ", "ID=12 ")
    agx.set("/etc/nvpmodel.conf", conf)
    numbers = {mode.name: mode.number for mode in controller(agx).modes()}
    assert numbers["MODE_15W_DESKTOP"] == 12
    assert len(numbers) == 8


def test_a_mode_that_needs_a_reboot_is_listed_with_the_reason_and_refused(
    agx: EmulatedBoard,
) -> None:
    agx.create_gpu_context()
    power = controller(agx)
    refused = {mode.name: mode.refused for mode in power.modes() if mode.refused}
    assert list(refused) == ["MODE_10W"]
    assert "reboot" in refused["MODE_10W"]
    with pytest.raises(ModeRefused, match="needs a reboot"):
        power.switch("MODE_10W")
    assert not [call for call in agx.calls() if "-m" in call]


def test_a_mode_can_be_selected_by_the_boards_id(nx: EmulatedBoard) -> None:
    assert controller(nx).switch("6").mode == "MODE_20W_2CORE"


def test_the_error_for_an_unknown_mode_lists_the_known_ones(nx: EmulatedBoard) -> None:
    with pytest.raises(InvalidInput, match="MODE_20W_6CORE"):
        controller(nx).switch("MAXN")


def test_the_mode_in_force_is_not_switched_to_again(agx: EmulatedBoard) -> None:
    assert controller(agx).switch("MODE_15W").seconds == 0.0
    assert agx.calls() == ["nvpmodel -q"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("fails", "status 255: failed to write"),
        ("hangs", "timed out after 1 s and was killed"),
        ("hangs-midway", "was killed"),
        ("no-effect", "it is in MODE_15W"),
        ("half-cores", "core 4 is offline"),
        ("killed-midway", "status -9"),
        ("needs-reboot", "needs a reboot"),
    ],
)
def test_after_a_failed_switch_the_board_is_back_in_the_mode_before(
    agx: EmulatedBoard, fault: str, says: str
) -> None:
    power = controller(agx, switch_s=1.0 if "hangs" in fault else 30.0)
    agx.inject_fault(fault, once=True)
    with pytest.raises(SwitchFailed, match=says) as failed:
        power.switch("MAXN")
    assert failed.value.reading == power.read() == Reading("MODE_15W")
    assert status_of(agx) == 2
    assert not agx.files.exists("/emulation/rebooted")


@pytest.mark.parametrize("fault", ["hangs-midway", "half-cores", "killed-midway"])
def test_a_board_that_cannot_be_switched_back_is_in_no_known_mode(
    agx: EmulatedBoard, fault: str
) -> None:
    power = controller(agx, switch_s=1.0 if "hangs" in fault else 30.0)
    agx.inject_fault(fault)
    with pytest.raises(SwitchFailed, match="the machine is in no known mode") as failed:
        power.switch("MAXN")
    assert failed.value.reading.mode == power.read().mode == ""
    assert failed.value.reading.detail


def test_a_switch_is_judged_by_the_mode_read_back(
    agx: EmulatedBoard,
) -> None:
    agx.inject_fault("warns")
    power = controller(agx)
    assert power.switch("MAXN").mode == power.read().mode == "MAXN"


@pytest.mark.parametrize("fault", ["query-fails", "query-hangs"])
def test_no_mode_is_reported_if_the_query_fails(agx: EmulatedBoard, fault: str) -> None:
    power = controller(agx, query_s=0.5)
    agx.inject_fault(fault)
    reading = power.read()
    assert reading.mode == ""
    assert "nvpmodel -q" in reading.detail


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (f"{CPU}/online", "0-2", "core 3 is offline"),
        (f"{CPU}/online", "0-4", "core 4 is online"),
        (f"{CPU}/cpu0/cpufreq/scaling_max_freq", "2265600", "CPU_DENVER_0 MAX_FREQ is 2265600"),
        (EMC, "1065600000", "EMC MAX_FREQ"),
        (TPC, "5", "TPC_PG_MASK is 5"),
    ],
)
def test_a_value_changed_by_hand_matches_no_mode(
    agx: EmulatedBoard, path: str, value: str, says: str
) -> None:
    power = controller(agx)
    agx.set(path, value)
    assert power.read().mode == ""
    assert says in power.read().detail


def test_modes_that_differ_only_in_the_memory_clock_are_distinguished(nx: EmulatedBoard) -> None:
    power = controller(nx)
    power.switch("MODE_15W_4CORE")
    nx.set(STATUS, "pmode:0007")  # claims 20 W, with the same cores and clocks
    assert power.read().mode == ""
    assert "EMC" in power.read().detail


def test_clocks_pinned_by_jetson_clocks_are_pinned_again_after_a_switch(agx: EmulatedBoard) -> None:
    power = controller(agx)
    programs = BoardPrograms(agx.files)
    programs.jetson_clocks()
    power.switch("MODE_30W_4CORE")
    cpu0 = f"{CPU}/cpu0/cpufreq"
    assert agx.files.read(f"{cpu0}/scaling_min_freq") == agx.files.read(f"{cpu0}/scaling_max_freq")
    power.switch("MODE_15W")
    calls = [call.split()[:2] for call in agx.calls() if call != "nvpmodel -q"]
    assert calls == [
        ["jetson_clocks"],
        ["nvpmodel", "-m"],
        ["jetson_clocks", "--store"],
        ["jetson_clocks"],
        ["jetson_clocks", "--restore"],
        ["nvpmodel", "-m"],
        ["jetson_clocks", "--store"],
        ["jetson_clocks"],
    ]
