"""Rules for the end of a LoadGen run in its process."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.loadgen import run
from profiler.loadgen.async_system import QueryCounter
from profiler.loadgen.outcome import LoadProgress, Message, RunFailed
from synergai.errors import EngineUnusable, InternalError, SynergaiError, Unavailable


class Exited(Exception):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_process(status: int) -> None:
        assert status == 1
        raise Exited

    monkeypatch.setattr("profiler.loadgen.run.os._exit", exit_process)


def ended_thread(work: Callable[[], object] = lambda: None) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return thread


def watch(counter: QueryCounter, thread: threading.Thread) -> list[Message]:
    messages: list[Message] = []
    try:
        run._watch(counter, thread, 60.0, messages.append)
    except Exited:
        return messages
    return [*messages, LoadProgress(-1, -1.0)]


def test_error_of_a_test_that_ended_between_two_looks_fails_the_run() -> None:
    counter = QueryCounter(None)
    counter.fail(EngineUnusable("the model file is truncated"))
    assert watch(counter, ended_thread()) == [RunFailed("the model file is truncated")]


def test_first_of_several_errors_is_reported() -> None:
    counter = QueryCounter(None)
    counter.fail(EngineUnusable("first"))
    counter.fail(Unavailable("second"))
    assert watch(counter, ended_thread()) == [RunFailed("first")]


def test_run_without_an_error_completes() -> None:
    [progress, completed] = watch(QueryCounter(None), ended_thread())
    assert isinstance(progress, LoadProgress)
    assert completed == LoadProgress(-1, -1.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineUnusable("truncated"), EngineUnusable("truncated")),
        (ValueError("no queries"), InternalError("the test failed: ValueError('no queries')")),
    ],
)
def test_any_error_of_the_test_ends_the_run(error: Exception, expected: SynergaiError) -> None:
    def prepare() -> Any:
        raise error

    counter, system = QueryCounter(None), SimpleNamespace(issue=None)
    arguments: tuple[Any, ...] = (system, None, prepare, None, counter)
    ended_thread(lambda: run._run_test(*arguments))
    assert repr(counter.error) == repr(expected)
