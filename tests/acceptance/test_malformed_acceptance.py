"""Malformed messages on every port, and the oracle of their script."""

from collections.abc import Callable

import pytest

from tests.acceptance.malformed import Observations, find_errors
from tests.acceptance.processes import Usage
from tests.acceptance.scripts import run_script

USED = Usage(rss=90 << 20, descriptors=40, threads=16)


def observed() -> Observations:
    seen = Observations()
    seen.tally.count("clients, unary", "INVALID_ARGUMENT", "a call", b"", 1000)
    seen.honest["gRPC"] = 100
    seen.before, seen.after = {"gateway": USED}, {"gateway": USED}
    return seen


def with_usage(**changes: int) -> Callable[[Observations], None]:
    fields = {name: getattr(USED, name) for name in Usage.__slots__} | changes

    def change(seen: Observations) -> None:
        seen.after = {"gateway": Usage(**fields)}

    return change


def test_oracle_accepts_a_gateway_that_refuses_everything() -> None:
    assert find_errors(observed()) == []


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda seen: seen.tally.count("clients, unary", "UNKNOWN", "a call"), "UNKNOWN"),
        (lambda seen: seen.tally.count("hub, unary", "INTERNAL", "a call"), "INTERNAL"),
        (lambda seen: seen.tally.count("HTTP", "500", "a request"), "500"),
        (lambda seen: seen.tally.count("HTTP", "no answer", "a request"), "no answer"),
        (lambda seen: seen.wrong.append("gRPC: wrong answer"), "wrong answer"),
        (lambda seen: seen.honest.update({"REST": 0}), "REST: only 0"),
        (lambda seen: seen.dead.append("worker, host 1"), "worker, host 1 died"),
        (lambda seen: seen.bugs.append("gateway.log, line 3: Traceback"), "Traceback"),
        (with_usage(rss=120 << 20), "rss"),
        (with_usage(descriptors=60), "descriptors"),
        (with_usage(threads=30), "threads"),
    ],
)
def test_oracle_finds_each_fault(fault: Callable[[Observations], None], text: str) -> None:
    seen = observed()
    fault(seen)
    assert any(text in line for line in find_errors(seen))


def test_malformed_messages_neither_kill_nor_confuse_a_fleet() -> None:
    run_script("malformed.py", "--messages", "150000")


@pytest.mark.parametrize("plant", ["unknown", "death"])
def test_script_finds_planted_faults(plant: str) -> None:
    with pytest.raises(AssertionError, match=r"[1-9]\d* errors"):
        run_script("malformed.py", "--messages", "15000", "--plant", plant)
