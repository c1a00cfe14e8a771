import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.power.nvpmodel_conf import parse_conf

CONF = """\
# comment
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
CORE_1 /sys/devices/system/cpu/cpu1/online

< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
< PARAM TYPE=CLOCK NAME=CPU_DENVER_0 >
MAX_FREQ /sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq
MAX_FREQ_KNEXT /sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq
< PARAM TYPE=HWMON NAME=VDDIN_OC_LIMIT >
WARN /sys/devices/hwmon curr1_max

< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 1
CPU_DENVER_0 MAX_FREQ -1
< POWER_MODEL ID=8 NAME=MODE_15W_1CORE >   # ids need not follow each other
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
TPC_POWER_GATING TPC_PG_MASK 0x5
CPU_DENVER_0 MAX_FREQ 1420800
< PM_CONFIG DEFAULT=8 >
< FAN_CONFIG DEFAULT=cool >
"""


def test_modes_have_the_cores_clock_budget_and_mask_of_their_lines() -> None:
    board = parse_conf(CONF)
    assert (board.default, sorted(board.models)) == (8, [0, 8])
    low, high = board.models[8], board.models[0]
    assert (low.online, low.max_khz, low.budget_w, low.tpc_mask) == (
        {0: True, 1: False},
        1420800,
        15.0,
        5,
    )
    assert (high.max_khz, high.budget_w, high.tpc_mask) == (0, 0.0, 0)
    assert board.parameters["VDDIN_OC_LIMIT"].arguments["WARN"] == "/sys/devices/hwmon curr1_max"


@pytest.mark.parametrize(
    ("old", "new", "line", "modes"),
    [
        ("CPU_ONLINE CORE_1 0", "CPU_ONLINE CORE_1", 20, [0]),
        ("CPU_ONLINE CORE_1 0", "CPU_ONLINE CORE_7 0", 20, [0]),
        ("CPU_ONLINE CORE_1 0", "CPU_OFFLINE CORE_1 0", 20, [0]),
        ("ID=8", "ID=eight", 18, [0]),
        ("ID=8 NAME", "NAME", 18, [0]),
        ("ID=8", "ID=0", 18, [0]),
        ("NAME=MODE_15W_1CORE", "NAME=MAXN", 18, [0]),
        ("NAME=MODE_15W_1CORE", "NAME=15W(1)", 18, [0]),
        ("NAME=MODE_15W_1CORE", "NAME=15W 1CORE", 18, [0]),
        ("# comment", "CORE_0 /sys", 1, [0, 8]),
        ("/sys/devices/gpu.0/tpc_pg_mask", "../etc/shadow", 7, [0]),
        ("DEFAULT=cool >", "DEFAULT=cool", 24, [0, 8]),
        ("< FAN_CONFIG DEFAULT=cool >", "< NVTT STEP=1 >\nCPU 2 3 4", 24, [0, 8]),
        ("DEFAULT=8", "DEFAULT=MAXN", 23, [0, 8]),
    ],
)
def test_what_is_not_understood_is_named_and_leaves_out_its_mode_only(
    old: str, new: str, line: int, modes: list[int]
) -> None:
    assert old in CONF
    board = parse_conf(CONF.replace(old, new))
    assert board.faults[0].startswith(f"line {line} is not understood: ")
    assert sorted(board.models) == modes


def test_a_file_that_is_no_conf_has_one_fault_per_section_and_no_mode() -> None:
    board = parse_conf("[maxn]\ncpu = 4\ngpu = 1\n[15w]\ncpu = 2\n")
    assert board.faults == (
        "line 1 is not understood: '[maxn]'",
        "no POWER_MODEL is understood",
        "there is no PM_CONFIG",
    )


def test_blanks_within_the_brackets_of_a_header_are_optional() -> None:
    text = CONF.replace("< ", "<").replace(" >", ">")
    assert parse_conf(text) == parse_conf(CONF)
    assert not parse_conf(text).faults


def test_cores_that_a_mode_does_not_set_are_online() -> None:
    model = parse_conf(CONF).models[8]
    assert model.cores(range(4)) == 3
    assert model.cores([1]) == 1  # the last core stays
    unset = parse_conf(CONF.replace("CPU_ONLINE CORE_1 0\n", "")).models[8]
    assert unset.cores(range(4)) == 4


@given(st.lists(st.sampled_from(CONF.splitlines()), max_size=40), st.text(max_size=20))
def test_any_text_has_modes_or_faults(lines: list[str], rest: str) -> None:
    board = parse_conf("\n".join([*lines, rest]))
    assert board.models or board.faults
    assert all(model.cores(range(2)) for model in board.models.values())
