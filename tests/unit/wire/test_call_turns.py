import asyncio

from synergai.wire.native import connection
from synergai.wire.native.connection import CallTurns
from tests.waiting import until


class FakeClient:
    """A client that has sent calls; `log` gets its name for each one that begins."""

    def __init__(self, name: str, calls: int, log: list[str]) -> None:
        self._name = name
        self._calls = calls
        self._log = log

    def begin(self, calls: int) -> tuple[int, bool]:
        begun = min(calls, self._calls)
        self._calls -= begun
        self._log += begun * [self._name]
        return begun, self._calls > 0


async def test_client_with_many_calls_lets_another_begin_its_own() -> None:
    begun: list[str] = []
    turns = CallTurns()
    many, few = FakeClient("many", 100, begun), FakeClient("few", 1, begun)
    turns.serve(many.begin)
    assert begun == connection._CALLS * ["many"]
    turns.serve(few.begin)
    assert "few" not in begun
    await until(lambda: len(begun) >= 101)
    assert begun.index("few") < 2 * connection._CALLS


async def test_client_without_a_backlog_comes_before_those_that_have_one() -> None:
    begun: list[str] = []
    turns = CallTurns()
    for number in range(40):
        turns.serve(FakeClient(f"many {number}", 100, begun).begin)
    turns.serve(FakeClient("few", 1, begun).begin)
    newcomers = 40 * connection._CALLS_OF_CLIENT
    await until(lambda: len(begun) > newcomers + 50)
    turns.serve(FakeClient("late", 1, begun).begin)
    waited = len(begun)
    await until(lambda: "late" in begun)
    assert begun.index("late") < waited + connection._CALLS


async def test_clients_with_a_backlog_are_not_starved_by_others() -> None:
    begun: list[str] = []
    turns = CallTurns()
    turns.serve(FakeClient("many", 50, begun).begin)
    for _ in range(10):
        for number in range(20):
            turns.serve(FakeClient(f"few {number}", 1, begun).begin)
        await asyncio.sleep(0)
    assert begun.count("many") >= connection._CALLS + 10 * connection._OF_OTHERS


async def test_client_that_begins_more_than_its_share_ends_the_turn() -> None:
    turns = CallTurns()
    asked: list[int] = []

    def begin(calls: int) -> tuple[int, bool]:
        asked.append(calls)
        return 3 * connection._CALLS, len(asked) < 3

    turns.serve(begin)
    turns.serve(begin)
    assert asked == [connection._CALLS, 0]
    await until(lambda: len(asked) == 3)
    assert asked[-1] == connection._CALLS_OF_CLIENT


async def test_client_that_has_left_begins_nothing() -> None:
    begun: list[str] = []
    turns = CallTurns()
    one, two = FakeClient("one", 100, begun), FakeClient("two", 1, begun)
    turns.serve(one.begin)
    turns.serve(two.begin)
    turns.leave(one.begin)
    await until(lambda: "two" in begun)
    assert begun.count("one") == connection._CALLS


async def test_turns_without_a_pause_follow_as_the_event_loop_comes_round() -> None:
    begun: list[str] = []
    turns = CallTurns()
    turns.serve(FakeClient("many", 20, begun).begin)
    await asyncio.sleep(0)
    assert len(begun) < 20
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(begun) == 20
