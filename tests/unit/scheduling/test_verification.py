"""Which answers are compared, and when a worker is proved to answer falsely."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.domain import WorkerId
from synergai.scheduling.verification import (
    AGAINST,
    IN_FAVOUR,
    MAX_WORKERS,
    PROOF,
    Sampler,
    Standings,
)

A, B = WorkerId("a"), WorkerId("b")


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3, 0.9])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_share_of_the_answers_is_taken_whatever_the_reports_sizes(share: float, batch: int) -> None:
    answers = 200_000
    sampler = Sampler(share, random.Random(1).random)
    taken = 0
    for _ in range(answers // batch):
        indices = sampler.take(batch)
        assert list(indices) == sorted(set(indices))
        assert all(0 <= index < batch for index in indices)
        taken += len(indices)
    spread = math.sqrt(answers * share * (1 - share))
    assert abs(taken - answers * share) < 5 * spread


def test_nothing_and_everything() -> None:
    assert list(Sampler(0.0, random.Random(1).random).take(10**9)) == []
    assert list(Sampler(1.0, random.Random(1).random).take(3)) == [0, 1, 2]


@given(st.integers(), st.lists(st.integers(0, 50), max_size=20))
def test_selection_does_not_depend_on_how_answers_are_grouped(seed: int, sizes: list[int]) -> None:
    grouped, single = (Sampler(0.2, random.Random(seed).random) for _ in range(2))
    for size in sizes:
        assert list(grouped.take(size)) == [i for i in range(size) if single.take(1)]


def test_worker_that_always_answers_falsely_is_proved_after_five_comparisons() -> None:
    standings = Standings()
    outcomes = [standings.false(A).is_proof for _ in range(5)]
    assert outcomes == [False, False, False, False, True]
    standing = standings.get(A)
    assert standing is not None
    assert (standing.compared, standing.false) == (5, 5)


def test_false_answer_makes_a_suspect_until_enough_right_ones() -> None:
    standings = Standings()
    standings.right(A)
    assert not standings.is_suspect(A)
    assert not standings.false(A).is_proof
    assert standings.is_suspect(A)
    for _ in range(math.ceil(-AGAINST / IN_FAVOUR)):
        standings.right(A)
    assert not standings.is_suspect(A)


def test_right_answers_of_the_past_do_not_excuse_false_ones() -> None:
    standings = Standings()
    for _ in range(10_000):
        standings.right(A)
    assert [standings.false(A).is_proof for _ in range(5)][-1]


def comparisons_until_proof(false_share: float, seed: int, limit: int) -> int | None:
    source, standings = random.Random(seed), Standings()
    for count in range(1, limit + 1):
        if source.random() >= false_share:
            standings.right(A)
        elif standings.false(A).is_proof:
            return count
    return None


@pytest.mark.parametrize("false_share", [0.05, 0.2, 0.5, 1.0])
def test_liars_are_found_as_soon_as_theory_says(false_share: float) -> None:
    """Wald's identity: the expected evidence at the end is the drift times the comparisons."""
    found = [comparisons_until_proof(false_share, seed, 100_000) for seed in range(200)]
    counts = [count for count in found if count is not None]
    assert len(counts) == 200
    drift = false_share * AGAINST + (1 - false_share) * IN_FAVOUR
    mean = sum(counts) / len(counts)
    # At least the proof, at most one false answer beyond it; sampling error of the mean: 15 %.
    assert 0.85 * PROOF / drift <= mean <= 1.15 * (PROOF + AGAINST) / drift


def test_honest_workers_with_rare_flips_are_not_proved() -> None:
    assert [comparisons_until_proof(0.001, seed, 20_000) for seed in range(10)] == [None] * 10


def test_disputes_are_counted_and_prove_nothing() -> None:
    standings = Standings()
    assert [standings.disputed(A) for _ in range(3)] == [1, 2, 3]
    assert not standings.is_suspect(A)


def test_forgotten_worker_starts_again() -> None:
    standings = Standings()
    standings.false(A)
    standings.forget(A)
    standings.forget(B)
    assert standings.get(A) is None


def test_number_of_standings_is_bounded() -> None:
    standings = Standings()
    for number in range(2 * MAX_WORKERS):
        standings.right(WorkerId(f"w{number}"))
    assert len(standings._by_worker) == MAX_WORKERS
