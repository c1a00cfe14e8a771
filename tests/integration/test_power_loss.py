"""A short run of the power cuts, and their negative control."""

from pathlib import Path

from tests.acceptance.power_loss import cut_all, record_workload

CUTS = 25


def test_power_cuts_lose_nothing_acknowledged_and_record_nothing_twice(tmp_path: Path) -> None:
    assert list(cut_all(record_workload(tmp_path, 30, 1), CUTS, seed=2)) == []


def test_check_finds_what_a_journal_without_syncs_loses(tmp_path: Path) -> None:
    assert list(cut_all(record_workload(tmp_path, 30, 1, synchronous="off"), CUTS, seed=2))
