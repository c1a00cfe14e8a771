"""Callers: who they are, and what they may do."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.entry.access.authenticator import Authenticator, PeerCertificate
from gateway.entry.access.caller import (
    ANONYMOUS,
    UNRESTRICTED,
    Caller,
    Grant,
    Role,
    current_caller,
    visible_engines,
)
from gateway.entry.access.table import LiveTable
from synergai.domain import EngineName
from synergai.errors import PermissionDenied, Unauthenticated

TABLE = f"""
[[clients]]
name = "camera"
tenant = "vision"
token_sha256 = "{hashlib.sha256(b"secret").hexdigest()}"

[[clients]]
name = "old"
token_sha256 = "{hashlib.sha256(b"old").hexdigest()}"
expires = 2020-01-01T00:00:00Z

[[clients]]
name = "board"
certificate = "board.example.org"

[[grants]]
to = ["camera", "board"]
roles = ["infer"]

[tenants.vision]
max_priority = 3
"""
BOARD = PeerCertificate(("other", "board.example.org"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
async def table(path: Path) -> LiveTable:
    return LiveTable(path)


@pytest.fixture
async def authenticator(table: LiveTable) -> AsyncIterator[Authenticator]:
    async with AsyncExitStack() as stack:
        yield Authenticator(table, stack)


async def test_token_and_certificate_name_their_client(authenticator: Authenticator) -> None:
    camera = await authenticator.authenticate(["Bearer secret"], None)
    assert (camera.name, camera.tenant, camera.max_priority) == ("camera", "vision", 3)
    assert camera.may(Role.INFER, engine="any")
    board = await authenticator.authenticate([], BOARD)
    assert (board.name, board.tenant) == ("board", "board")
    # A token says more about a call than the connection that it arrives on.
    assert await authenticator.authenticate(["bearer secret"], BOARD) is camera


async def test_call_without_credentials_is_anonymous(authenticator: Authenticator) -> None:
    caller = await authenticator.authenticate([], None)
    assert caller.anonymous
    assert not caller.has_grants


@pytest.mark.parametrize(
    "authorization",
    [
        ["Bearer other"],
        ["Bearer old"],
        ["Bearer a.b.c"],
        ["Bearer "],
        ["Bearer"],
        [""],
        ["Basic secret"],
        ["Bearer secret", "Bearer secret"],
        ["Bearer " + 10_000 * "x"],
    ],
)
@pytest.mark.parametrize("certificate", [None, BOARD])
async def test_invalid_credentials_are_refused_never_ignored(
    authenticator: Authenticator, authorization: list[str], certificate: PeerCertificate | None
) -> None:
    with pytest.raises(Unauthenticated):
        await authenticator.authenticate(authorization, certificate)
    assert authenticator.failures == 1


async def test_certificate_of_no_client_is_refused(authenticator: Authenticator) -> None:
    with pytest.raises(Unauthenticated, match="no client with certificate 'x' or 'y'"):
        await authenticator.authenticate([], PeerCertificate(("x", "y")))


async def test_change_of_the_table_changes_callers_that_are_in_use(
    authenticator: Authenticator, table: LiveTable, path: Path
) -> None:
    camera = await authenticator.authenticate(["Bearer secret"], None)
    board = await authenticator.authenticate([], BOARD)
    text = TABLE.replace('tenant = "vision"', 'tenant = "lab"').replace("board.example.org", "new")
    await asyncio.to_thread(path.write_text, text)
    await table.look()
    assert camera.tenant == "lab"
    assert await authenticator.authenticate(["Bearer secret"], None) is camera
    with pytest.raises(Unauthenticated, match="'board' have been revoked"):
        board.check(Role.INFER)


async def test_client_that_takes_over_a_token_is_another_caller(
    authenticator: Authenticator, table: LiveTable, path: Path
) -> None:
    camera = await authenticator.authenticate(["Bearer secret"], None)
    await asyncio.to_thread(path.write_text, TABLE.replace('name = "camera"', 'name = "thief"'))
    await table.look()
    assert (await authenticator.authenticate(["Bearer secret"], None)).name == "thief"
    with pytest.raises(Unauthenticated):
        camera.check(Role.INFER)


CAMERA_GRANTS = (
    Grant(to=("camera",), roles=frozenset({Role.INFER}), engines=("resnet*",)),
    Grant(to=("camera",), roles=frozenset({Role.OBSERVE}), tenants=("lab-?",)),
)
CAMERA = Caller("camera", "vision", CAMERA_GRANTS, max_priority=5)


@pytest.mark.parametrize(
    ("role", "engine", "tenant", "allowed"),
    [
        (Role.INFER, "resnet50", None, True),
        (Role.INFER, "resnet50", "vision", True),
        (Role.INFER, "resnet50", "lab-1", False),
        (Role.INFER, "Resnet50", None, False),
        (Role.INFER, "bert", None, False),
        (Role.INFER, None, None, True),
        (Role.OBSERVE, "bert", "lab-1", True),
        (Role.OBSERVE, None, "lab-10", False),
        (Role.OBSERVE, None, "", False),
        (Role.SUBMIT, None, None, False),
    ],
)
def test_roles_apply_to_the_engines_and_tenants_of_their_grant(
    role: Role, engine: str | None, tenant: str | None, allowed: bool
) -> None:
    for _ in range(2):  # the second answer is remembered
        assert CAMERA.may(role, engine=engine, tenant=tenant) is allowed


def test_remembered_decisions_are_bounded() -> None:
    for number in range(10_000):
        CAMERA.may(Role.INFER, engine=f"engine-{number}")
    assert len(CAMERA._decisions) <= 1024
    assert CAMERA.may(Role.INFER, engine="resnet50")


def test_error_names_the_role_the_engine_and_the_tenant() -> None:
    with pytest.raises(
        PermissionDenied, match="'camera' does not have the role 'submit' for engine 'e' in tenant"
    ):
        CAMERA.check(Role.SUBMIT, engine="e", tenant="other")


def test_work_belongs_to_the_callers_tenant_unless_it_may_act_for_another() -> None:
    assert CAMERA.tenant_of("", Role.INFER, engine="resnet50") == "vision"
    with pytest.raises(PermissionDenied):
        CAMERA.tenant_of("lab-1", Role.INFER, engine="resnet50")
    assert CAMERA.tenant_of("lab-1", Role.OBSERVE, engine="resnet50") == "lab-1"


def test_anonymous_caller_is_asked_for_credentials() -> None:
    with pytest.raises(Unauthenticated, match=r"'infer' for engine 'e': send .* SYNERGAI_TOKEN"):
        Caller(ANONYMOUS, "", ()).check(Role.INFER, engine="e")


def test_change_of_the_table_reaches_callers_of_open_streams() -> None:
    grant = Grant(to=("a",), roles=frozenset({Role.INFER}), engines=("e",))
    caller = Caller("a", "a", (grant,))
    caller.check(Role.INFER, engine="e")
    caller.update("b", ())
    assert caller.tenant == "b"
    assert not caller.has_grants
    with pytest.raises(PermissionDenied):
        caller.check(Role.INFER, engine="e")
    caller.revoke("'a' was removed")
    with pytest.raises(Unauthenticated, match="'a' was removed"):
        caller.check(Role.INFER, engine="e")


def test_expiry_is_checked_with_every_decision() -> None:
    grant = Grant(to=("a",), roles=frozenset({Role.INFER}))
    Caller("a", "a", (grant,), expires_at=time.time() + 60).check(Role.INFER)
    with pytest.raises(Unauthenticated, match="'a' have expired"):
        Caller("a", "a", (grant,), expires_at=time.time() - 1).check(Role.INFER)


def test_without_an_access_table_every_caller_may_do_everything() -> None:
    assert current_caller() is UNRESTRICTED
    for role in Role:
        assert UNRESTRICTED.may(role, engine="any", tenant="any")


def test_decision_made_during_a_change_does_not_outlast_it() -> None:
    class ChangingGrants(tuple[Grant, ...]):
        """Grants that are withdrawn while a thread reads them."""

        __slots__ = ()

        def __iter__(self) -> Iterator[Grant]:
            caller.update("vision", ())
            return super().__iter__()

    caller = Caller("camera", "vision", ())
    caller.update("vision", ChangingGrants(CAMERA_GRANTS))
    assert caller.may(Role.INFER, engine="resnet50")
    assert not caller.may(Role.INFER, engine="resnet50")


def test_stages_are_not_listed() -> None:
    names = [EngineName(name) for name in ("net", "net/2", "net.s0-12", "net.s12-58/2")]
    caller = Caller("a", "a", (Grant(to=("a",), roles=frozenset({Role.INFER})),))
    assert visible_engines(caller, names) == names[:2]
