"""The table of what calls need."""

import re
from pathlib import Path

import pytest

from gateway.entry.access.caller import ANONYMOUS, READERS, Caller, Grant, Role
from gateway.entry.access.methods import KNOWN, METHODS, PUBLIC, Permission, check_call
from gateway.grpc_server import UNSUPPORTED_METHODS
from synergai.errors import PermissionDenied, Unauthenticated

NOBODY = Caller("nobody", "nobody", ())


def anonymous(*roles: Role) -> Caller:
    return Caller(ANONYMOUS, "", (Grant(to=(ANONYMOUS,), roles=frozenset(roles)),))


def test_call_outside_the_table_is_refused_to_every_caller() -> None:
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


def test_document_lists_what_each_role_may_call() -> None:
    text = (Path(__file__).parents[4] / "docs" / "guide" / "security.md").read_text("utf-8")
    [section] = re.findall(r"^## Roles$(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    rows = {
        cells[0]: set(re.findall(r"`(?:[\w.]+\.)?(\w+)`", cells[1]))
        for cells in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    }
    expected: dict[str, set[str]] = {}
    for method, permission in METHODS.items():
        if method in UNSUPPORTED_METHODS or "reflection" in method:
            continue
        for row in document_rows(permission):
            name = "Health" if "health" in method else method.rpartition("/")[2]
            expected.setdefault(row, set()).add(name)
    assert {row: rows[row] for row in expected} == expected


def document_rows(permission: Permission) -> list[str]:
    """Return the first cells of the rows of docs/guide/security.md that have a call."""
    if permission.public:
        return ["everyone"]
    if not permission.roles:
        return ["any known caller, or an anonymous one with any grant"]
    if permission.roles == READERS:
        return ["`infer`, `submit` or `observe`"]
    return [f"`{role}`" for role in permission.roles]
