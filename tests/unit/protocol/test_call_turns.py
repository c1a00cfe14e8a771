import asyncio

from synergai.protocol.native import call_turns
from synergai.protocol.native.call_turns import CallTurns
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
    assert begun == call_turns._CALLS * ["many"]
    turns.serve(few.begin)
    assert "few" not in begun
    await until(lambda: len(begun) >= 101)
    assert begun.index("few") < 2 * call_turns._CALLS


async def test_client_that_has_left_begins_nothing() -> None:
    begun: list[str] = []
    turns = CallTurns()
    one, two = FakeClient("one", 100, begun), FakeClient("two", 1, begun)
    turns.serve(one.begin)
    turns.serve(two.begin)
    turns.leave(one.begin)
    await until(lambda: "two" in begun)
    assert begun.count("one") == call_turns._CALLS


async def test_turns_without_a_pause_follow_as_the_event_loop_comes_round() -> None:
    begun: list[str] = []
    turns = CallTurns()
    turns.serve(FakeClient("many", 20, begun).begin)
    await asyncio.sleep(0)
    assert len(begun) < 20
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(begun) == 20
