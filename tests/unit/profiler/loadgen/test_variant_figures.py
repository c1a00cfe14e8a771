import pytest

from profiler.loadgen.traces.request_log import RequestLog, by_second, variant_figures
from synergai.errors import Overloaded, SynergaiError

ACCURACIES = {"full": 0.9, "p25": 0.8}


def log_of(*answers: tuple[float, str, SynergaiError | None]) -> RequestLog:
    """A run of requests (latency, version, error), one each half second, due within 0.1 s."""
    made = RequestLog()
    for number, (latency, version, error) in enumerate(answers):
        due = number / 2
        made.record(
            due=due, sent=due, ended=due + latency, deadline_s=0.1, error=error, version=version
        )
    return made


LOG = log_of(
    (0.05, "1.full", None),
    (0.05, "1.p25", None),
    (0.20, "1.full", None),
    (0.01, "", Overloaded("too much")),
)


def test_late_and_missing_answers_have_no_accuracy() -> None:
    found = variant_figures(LOG, ACCURACIES)
    assert found is not None
    assert found.answers == {"full": 2, "p25": 1}
    assert found.effective_accuracy == pytest.approx((0.9 + 0.8) / 4)
    assert found.floor_violations == 0


def test_answers_below_the_floor_are_counted() -> None:
    found = variant_figures(LOG, ACCURACIES, floor=0.85)
    assert found is not None
    assert found.floor_violations == 1


def test_engine_without_variants_has_no_such_figures() -> None:
    assert variant_figures(log_of((0.05, "1", None)), {}) is None


def test_each_second_has_its_share_of_variants() -> None:
    assert [second.variants for second in by_second(LOG)] == [{"full": 1, "p25": 1}, {"full": 1}]
