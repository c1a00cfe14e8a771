"""Which figures an entry may have, and the size of a dictionary."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from profiler.dictionary.files import add_to_dictionary, delete_from_dictionary, load_dictionary
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import check_plausible, find_implausible
from tests.cores import new_entry

ENTRY = new_entry(
    "digits", "cloud", 100.0, model_load_s=2.0, latency_p50_s=0.01, watts=20.0, batch_qps=(180.0,)
)


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"latency_p50_s": 0.0, "qps": 0.01, "batch_qps": ()},
        {"latency_p50_s": 0.0001},
        {"latency_p50_s": 0.0, "qps": 1e6},
        {"latency_p50_s": 1.01e-4, "qps": 58_272.0},  # tiny, mostly overhead of the host
        {"latency_p50_s": 0.02, "qps": 88_000.0},  # the same on a busy machine
    ],
)
def test_real_figures_are_plausible(figures: dict[str, float]) -> None:
    check_plausible([replace(ENTRY, **figures)])


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        ({"qps": 1e-6, "latency_p50_s": 0.0}, "1e-06 queries per second"),
        ({"qps": 1e12, "latency_p50_s": 0.0}, "1e\\+12 queries per second"),
        ({"batch_qps": (1e-5,)}, "1e-05 queries per second"),
        ({"model_load_s": 1e6}, "T_pre of 1e\\+06 s"),
        ({"watts": 1e7}, "1e\\+07 W"),
        ({"latency_p50_s": 50.0}, "median latency of 50 s"),
        ({"latency_p50_s": 1e-9}, "median latency of 1e-09 s"),
    ],
)
def test_absurd_figures_are_refused(figures: dict[str, float], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        check_plausible([ENTRY, replace(ENTRY, **figures)])


def test_dictionary_grows_up_to_its_limit_and_entries_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    entries = [replace(ENTRY, configuration=Configuration(threads)) for threads in range(5)]
    add_to_dictionary(path, entries[:3], max_entries=3)
    with pytest.raises(InvalidInput, match="3 is the most"):
        add_to_dictionary(path, entries, max_entries=3)
    assert len(load_dictionary(path)) == 3
    add_to_dictionary(path, entries)
    add_to_dictionary(path, entries, max_entries=3)  # replaces, and does not grow
    deleted = delete_from_dictionary(path, lambda entry: entry.configuration.threads < 2)
    assert sorted(entry.configuration.threads for entry in deleted) == [0, 1]
    assert {entry.configuration.threads for entry in load_dictionary(path)} == {2, 3, 4}


def test_profile_of_the_thesis_is_plausible() -> None:
    entries = list(load_dictionary(RECONSTRUCTED_PROFILE))
    assert entries
    assert not [fault for entry in entries if (fault := find_implausible(entry))]
