"""Rules for deadlines as callers give them."""

from types import SimpleNamespace

import pytest

from synergai.client import requests
from synergai.client.requests import Budget, to_timestamp
from synergai.errors import DeadlineExceeded, InvalidInput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_budget_that_is_used_up_means_no_response_before_the_deadline(
    clock: SimpleNamespace,
) -> None:
    budget = Budget(0.5)
    clock.now += 0.25
    assert budget.left() == 0.25
    clock.now += 0.25
    with pytest.raises(DeadlineExceeded, match=r"^no response before the deadline$"):
        budget.left()


def test_budget_without_a_limit_is_never_used_up() -> None:
    assert Budget(None).left() is None


def test_an_instant_that_is_no_datetime_is_invalid() -> None:
    with pytest.raises(InvalidInput, match=r"^by must be a datetime, not '18:00'$"):
        to_timestamp("18:00")  # type: ignore[arg-type]  # a caller's mistake
