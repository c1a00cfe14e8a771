import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.errors import NotSupported
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
    ("old", "new", "line"),
    [
        ("CPU_ONLINE CORE_1 0", "CPU_ONLINE CORE_1", "line 20"),
        ("CPU_ONLINE CORE_1 0", "CPU_ONLINE CORE_7 0", "line 20"),
        ("CPU_ONLINE CORE_1 0", "CPU_OFFLINE CORE_1 0", "line 20"),
        ("ID=8", "ID=eight", "line 18"),
        ("ID=8 NAME", "NAME", "line 18"),
        ("< PARAM TYPE=FILE NAME=CPU_ONLINE >", "<PARAM TYPE=FILE", "line 2"),
        ("/sys/devices/gpu.0/tpc_pg_mask", "../etc/shadow", "line 7"),
        ("< PM_CONFIG DEFAULT=8 >", "", "no PM_CONFIG"),
    ],
)
def test_a_syntax_error_is_reported_with_its_line(old: str, new: str, line: str) -> None:
    assert old in CONF
    with pytest.raises(NotSupported, match=line):
        parse_conf(CONF.replace(old, new))


@given(st.lists(st.sampled_from(CONF.splitlines()), max_size=40), st.text(max_size=20))
def test_any_text_is_either_parsed_or_refused(lines: list[str], rest: str) -> None:
    try:
        board = parse_conf("\n".join([*lines, rest]))
    except NotSupported:
        return
    assert board.models
