"""The table of what calls need."""

from __future__ import annotations

import pytest

from gateway.access.caller import Caller
from gateway.access.methods import KNOWN, METHODS, PUBLIC, ROUTES, check_call
from gateway.access.roles import ANONYMOUS, Grant, Role
from synergai.errors import PermissionDenied, Unauthenticated

NOBODY = Caller("nobody", "nobody", ())


def anonymous(*roles: Role) -> Caller:
    return Caller(ANONYMOUS, "", (Grant(to=(ANONYMOUS,), roles=frozenset(roles)),))


def test_call_outside_the_table_is_refused_whoever_makes_it() -> None:
    everything = Caller("a", "a", (Grant(to=("a",), roles=frozenset(Role), tenants=("*",)),))
    with pytest.raises(PermissionDenied):
        check_call(None, everything)
    with pytest.raises(Unauthenticated):
        check_call(None, anonymous())


def test_page_is_for_every_known_caller_and_for_anonymous_ones_with_a_grant() -> None:
    check_call(KNOWN, NOBODY)
    check_call(KNOWN, anonymous(Role.INFER))
    with pytest.raises(Unauthenticated):
        check_call(KNOWN, anonymous())
    check_call(PUBLIC, anonymous())


def test_metrics_show_all_engines_and_need_the_role_for_all() -> None:
    some = Caller("a", "a", (Grant(to=("a",), roles=frozenset({Role.OBSERVE}), engines=("b*",)),))
    check_call(METHODS["/synergai.v1.Fleet/ListWorkers"], some)
    with pytest.raises(PermissionDenied, match="'observe' for engine '\\*'"):
        check_call(ROUTES["/metrics"], some)
