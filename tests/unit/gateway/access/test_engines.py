"""Engines that callers are told of."""

from gateway.access.caller import Caller
from gateway.access.engines import visible_engines
from gateway.access.roles import Grant, Role
from gateway.fleet.known_engines import KnownEngines
from synergai.domain import EngineName


def test_stages_are_not_listed() -> None:
    names = [EngineName(name) for name in ("net", "net/2", "net.s0-12", "net.s12-58/2")]
    caller = Caller("a", "a", (Grant(to=("a",), roles=frozenset({Role.INFER})),))
    assert visible_engines(caller, names) == names[:2]


def test_stages_are_not_suggested() -> None:
    known = KnownEngines()
    known.add(EngineName("net.s0-12"))
    assert "net.s0-12" not in str(known.not_found("net.s0-1"))
