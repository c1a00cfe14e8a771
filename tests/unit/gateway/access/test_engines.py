"""Engines that callers are told of."""

from gateway.entry.access.caller import Caller, visible_engines
from gateway.entry.access.roles import Grant, Role
from synergai.domain import EngineName


def test_stages_are_not_listed() -> None:
    names = [EngineName(name) for name in ("net", "net/2", "net.s0-12", "net.s12-58/2")]
    caller = Caller("a", "a", (Grant(to=("a",), roles=frozenset({Role.INFER})),))
    assert visible_engines(caller, names) == names[:2]
