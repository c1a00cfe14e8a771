"""Fleet files: workers, links, and what is wrong with them."""

from pathlib import Path

import pytest

from profiler.planning.plan_case import read_fleet
from synergai.core.routes.links import GATEWAY
from synergai.errors import InvalidInput

WORKERS = """
[[workers]]
id = "edge"
worker_class = "agx"
memory_mb = 200
[[workers]]
id = "cloud"
worker_class = "x86"
"""
LINK = '[[links]]\nfrom = "edge"\nto = "cloud"\n'


def test_link_has_both_directions_unless_the_other_is_given(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    back = '[[links]]\nfrom = "cloud"\nto = "edge"\nmbit_s = 16\n'
    file.write_text(f"{WORKERS}{LINK}mbit_s = 8\nlatency_ms = 500\n")
    both = read_fleet(file).links()
    assert both.hop("edge", "cloud", 1e6) == both.hop("cloud", "edge", 1e6) == (1.5, 1.0)
    file.write_text(f"{WORKERS}{LINK}mbit_s = 8\n{back}")
    assert read_fleet(file).links().hop("cloud", "edge", 1e6) == (0.5, 0.5)


def test_other_pairs_have_the_default_link(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f"{WORKERS}[default_link]\nmbit_s = 80\n")
    fleet = read_fleet(file)
    assert fleet.links().hop(GATEWAY, "cloud", 1e6) == (0.1, 0.1)
    assert [each.memory_mb for each in fleet.workers] == [200, float("inf")]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "workers is missing"),
        ("workers = []", "it has no"),
        ("workers = [", "is not TOML"),
        ("workers = " + "[" * 5000, "is nested too deeply"),
        (
            f"{WORKERS}bandwidth = 3",
            "workers 2: there is no setting bandwidth, but id",
        ),
        (f"{WORKERS}{WORKERS}", "'edge' is there twice"),
        (WORKERS.replace("cloud", GATEWAY), "belongs to the gateway"),
        (WORKERS.replace("200", "-1"), "memory_mb"),
        (WORKERS.replace("edge", "../edge"), "not a valid worker id"),
        (f"{WORKERS}{LINK}", "links 1: mbit_s is missing"),
        (f"{WORKERS}{LINK}mbit_s = 0", "mbit_s"),
        (f"{WORKERS}{LINK}mbit_s = -5", "mbit_s"),
        (f"{WORKERS}{LINK}mbit_s = nan", "mbit_s"),
        (f"{WORKERS}{LINK}mbit_s = inf", "mbit_s"),
        (f"{WORKERS}{LINK}mbit_s = 1e12", "mbit_s"),
        (f"{WORKERS}{LINK}mbit_s = 1\nlatency_ms = -1", "latency_ms"),
        (f"{WORKERS}{LINK}mbit_s = 1\n{LINK}mbit_s = 2", "is there twice; keep one"),
        (f"{WORKERS}{LINK}mbit_s = 1".replace('"cloud"\nm', '"clod"\nm'), "did you mean cloud"),
        (f"{WORKERS}{LINK}mbit_s = 1".replace('"cloud"\nm', '"edge"\nm'), "leads nowhere"),
        (f"{WORKERS}[default_link]\nmbit_s = 0", "default_link, mbit_s"),
    ],
)
def test_faulty_file_is_refused_with_its_fault(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=fault) as error:
        read_fleet(file)
    assert str(file) in str(error.value)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.toml cannot be read: No such file"):
        read_fleet(tmp_path / "none.toml")
