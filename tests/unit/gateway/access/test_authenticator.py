"""From credentials to callers."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.entry.access.authenticator import Authenticator, PeerCertificate
from gateway.entry.access.caller import Role
from gateway.entry.access.table import LiveTable
from synergai.errors import Unauthenticated

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
