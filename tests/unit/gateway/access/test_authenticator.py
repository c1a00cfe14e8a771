"""Callers: who they are, by tokens of all kinds, and what they may do."""

import asyncio
import base64
import hashlib
import hmac
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.entry.access import jwt_tokens
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
from gateway.entry.access.jwt_tokens import KeySet
from gateway.entry.access.table import LiveTable
from synergai.domain import EngineName
from synergai.errors import PermissionDenied, Unauthenticated, Unavailable
from tests.authorities import Issuer

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
    decided = len(CAMERA._decisions)
    CAMERA.may(Role.INFER, engine="e" * 1_000_000)
    assert len(CAMERA._decisions) == decided
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


def table_text(folder: Path, audience: str = Issuer.audience) -> str:
    return f"""
[[jwt]]
issuer = "{Issuer.name}"
audience = "{audience}"
keys = "{folder / "keys.json"}"

[[grants]]
to = ["jwt:alice", "group:operators"]
roles = ["operate"]

[tenants.lab]
max_priority = 2
"""


class Harness:
    """An authenticator that trusts an issuer."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.issuer = Issuer()
        self.keys = folder / "keys.json"
        self.issuer.publish(self.keys)
        self.folder = folder
        self.path = folder / "access.toml"
        self.path.write_text(table_text(folder))
        self.table = LiveTable(self.path)
        self._authenticator = Authenticator(self.table, stack)

    async def caller(self, token: str) -> Caller:
        return await self._authenticator.authenticate([f"Bearer {token}"], None)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with AsyncExitStack() as stack:
        yield Harness(tmp_path, stack)


async def test_claims_name_the_caller_its_tenant_and_its_groups(harness: Harness) -> None:
    alice = await harness.caller(harness.issuer.token("alice"))
    assert (alice.name, alice.tenant) == ("jwt:alice", "alice")
    assert alice.may(Role.OPERATE)
    token = harness.issuer.token("bob@example.org", tenant="lab", groups=["operators", "x"])
    bob = await harness.caller(token)
    assert (bob.name, bob.tenant, bob.max_priority) == ("jwt:bob@example.org", "lab", 2)
    assert bob.may(Role.OPERATE)
    assert not (await harness.caller(harness.issuer.token("eve", groups="other"))).has_grants


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def forged(token: str, secret: str = "", **header: str) -> str:
    """Return a token with another header, signed with a secret or not at all."""
    _, payload, _ = token.split(".")
    signed = f"{encoded(json.dumps(header).encode())}.{payload}"
    signature = hmac.digest(secret.encode(), signed.encode(), "sha256") if secret else b""
    return f"{signed}.{encoded(signature)}"


async def test_invalid_tokens_are_refused(harness: Harness) -> None:
    issuer = harness.issuer
    token = issuer.token("alice")
    published = harness.keys.read_text()
    for invalid, message in {
        issuer.token("alice", days=-1): "expired",
        issuer.token("alice", aud="another"): "Audience doesn't match",
        issuer.token("alice", iss="https://evil.example.org"): "issuer is not trusted",
        issuer.token("alice", nbf=4102444800): "not yet valid",
        issuer.token(""): "subject",
        issuer.token("alice", exp=None): "exp",
        issuer.token("alice", days=1.01): "expires too late: .* within 86,400 s",
        issuer.token("alice", exp=1e300): "expires too late",
        issuer.token("alice", exp=math.inf): "not valid",
        issuer.token("a b"): "no valid tenant",
        issuer.token("alice", tenant=["lab"]): "no valid tenant",
        issuer.token("alice", groups={"a": 1}): "'groups' is not a list",
        Issuer().token("alice"): "Signature verification failed",
        Issuer("2").token("alice"): "key that its issuer does not publish",
        forged(token, alg="none", kid="1"): "'none'",
        forged(token, alg="ES384", kid="1"): "not valid",
        forged(token, published, alg="HS256", kid="1"): "'HS256'",
        token[:-4] + "AAAA": "Signature verification failed",
        "a.b.c": "not valid",
    }.items():
        with pytest.raises(Unauthenticated, match=message):
            await harness.caller(invalid)


async def test_token_that_expires_while_it_is_remembered_is_refused(harness: Harness) -> None:
    token = harness.issuer.token("alice", days=-5 / 86_400)  # within the tolerance
    alice = await harness.caller(token)
    alice.expires_at = 0.0
    with pytest.raises(Unauthenticated, match="have expired"):
        await harness.caller(token)


async def test_few_tokens_are_remembered_those_that_were_used_last(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_tokens, "_MAX_CACHED", 2)
    tokens = [harness.issuer.token(name) for name in ("alice", "bob", "eve")]
    first, second, _ = [await harness.caller(tokens[number]) for number in (0, 1, 0)]
    await harness.caller(tokens[2])
    assert await harness.caller(tokens[0]) is first
    assert await harness.caller(tokens[1]) is not second


async def test_unknown_key_loads_the_keys_again_but_not_often(harness: Harness) -> None:
    await harness.caller(harness.issuer.token("alice"))
    second = Issuer("2")
    await asyncio.to_thread(second.publish, harness.keys)
    assert (await harness.caller(second.token("alice"))).name == "jwt:alice"
    third = Issuer("3")
    await asyncio.to_thread(third.publish, harness.keys)
    with pytest.raises(Unauthenticated, match="does not publish"):
        await harness.caller(third.token("alice"))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('audience = "synergai"', 'audience = "another"', "Audience"),
        ("keys.json", "other.json", "does not publish|cannot be loaded"),
        ('"https://login.example.org"', '"https://new.example.org"', "not trusted"),
    ],
)
async def test_issuer_that_is_changed_loses_its_open_streams(
    harness: Harness, before: str, after: str, message: str
) -> None:
    token = harness.issuer.token("alice")
    alice = await harness.caller(token)
    text = table_text(harness.folder).replace(before, after)
    await asyncio.to_thread(harness.path.write_text, text)
    await harness.table.look()
    with pytest.raises(Unauthenticated, match="changed or removed"):
        alice.check(Role.OPERATE)
    with pytest.raises((Unauthenticated, Unavailable), match=message):
        await harness.caller(token)


@pytest.mark.parametrize("content", [None, "no json", '{"keys": 1}'])
async def test_without_keys_tokens_cannot_be_verified_now(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    keys = KeySet(str(path))
    with pytest.raises(Unavailable, match="try later"):
        await keys.find("1")
    await keys.close()
    assert f"the keys at {path} cannot be loaded" in caplog.text


async def test_keys_that_cannot_be_loaded_again_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    Issuer().publish(path)
    keys = KeySet(str(path))
    assert (await keys.find(""))["kid"] == "1"
    path.unlink()
    with pytest.raises(Unauthenticated):
        await keys.find("2")
    assert (await keys.find("1"))["kid"] == "1"
    await keys.close()


@pytest.mark.parametrize("loaded", [False, True])
async def test_issuer_that_is_too_slow_keeps_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    path = tmp_path / "keys.json"
    Issuer().publish(path)
    keys = KeySet(str(path))
    if loaded:
        await keys.find("1")
    sent = threading.Event()
    monkeypatch.setattr(jwt_tokens, "_read", lambda _: sent.wait() and {"keys": []})
    monkeypatch.setattr(jwt_tokens, "_TIMEOUT_S", 0.005)
    if not loaded:
        await keys.close()
        keys = KeySet(str(path))
    with pytest.raises(Unavailable, match="try later"):
        await keys.find("2")
    sent.set()
    await keys.close()
