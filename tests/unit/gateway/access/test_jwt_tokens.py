"""JSON web tokens as credentials."""

import asyncio
import base64
import hmac
import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.entry.access.authenticator import Authenticator
from gateway.entry.access.caller import Caller, Role
from gateway.entry.access.jwt_tokens import KeySet
from gateway.entry.access.table import LiveTable
from synergai.errors import Unauthenticated, Unavailable
from tests.authorities import Issuer


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


@pytest.mark.parametrize("content", [None, "no json", '{"keys": 1}', "x" * 300_000])
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
