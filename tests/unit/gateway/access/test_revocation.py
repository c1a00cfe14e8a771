"""Certificate revocation lists."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from gateway.access.revocation import RevocationLists
from synergai.errors import InvalidInput, Unauthenticated
from tests.authorities import Authority

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "crl.pem"


async def test_revoked_certificate_is_refused_once_the_list_has_it(
    authority: Authority, path: Path
) -> None:
    lost, kept = (authority.issue(name)[0].read_bytes() for name in ("lost", "kept"))
    authority.revoke(path)
    lists = RevocationLists(path, [authority.file])
    lists.check(lost)
    await asyncio.to_thread(authority.revoke, path, authority.file.with_name("lost.authority.pem"))
    await lists.look()
    with pytest.raises(Unauthenticated, match="has been revoked"):
        lists.check(lost)
    lists.check(kept)


def test_certificates_are_refused_without_a_current_list(
    authority: Authority, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = authority.issue("client")[0].read_bytes()
    authority.revoke(path, days=-1)
    lists = RevocationLists(path, [authority.file])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(
                Unauthenticated, match="revocation list of CN=authority has expired"
            ):
                lists.check(certificate)
    assert caplog.text.count("expired on") == 1
    other = Authority(tmp_path, "other").issue("client")[0].read_bytes()
    with pytest.raises(Unauthenticated, match="no certificate revocation list of CN=other"):
        lists.check(other)


def test_list_that_no_authority_signed_is_invalid(
    authority: Authority, path: Path, tmp_path: Path
) -> None:
    impostor = tmp_path / "impostor"
    impostor.mkdir()
    Authority(impostor).revoke(path)  # of the same name
    with pytest.raises(InvalidInput, match="CN=authority is not signed by an authority"):
        RevocationLists(path, [authority.file])


@pytest.mark.parametrize("content", ["", "no PEM"])
def test_file_without_lists_is_invalid(authority: Authority, path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(InvalidInput, match="contains no certificate revocation lists"):
        RevocationLists(path, [authority.file])
    path.unlink()
    with pytest.raises(InvalidInput, match="cannot be read"):
        RevocationLists(path, [authority.file])


def test_damaged_list_is_invalid(authority: Authority, path: Path) -> None:
    authority.revoke(path)
    path.write_text(path.read_text().replace("MII", "AAA", 1).replace("\nM", "\nQ", 1))
    with pytest.raises(InvalidInput, match="invalid revocation list"):
        RevocationLists(path, [authority.file])


def test_certificates_of_a_revoked_authority_are_refused(
    authority: Authority, path: Path, tmp_path: Path
) -> None:
    middle = Authority(tmp_path, "middle", authority)
    lowest = Authority(tmp_path, "lowest", middle)
    clients = {each.name: each.issue("client")[0].read_bytes() for each in (middle, lowest)}
    direct = authority.issue("client")[0].read_bytes()
    parts = [tmp_path / f"{number}.crl" for number in range(3)]
    middle.revoke(parts[1])
    lowest.revoke(parts[2])

    def lists(*revoked: Path) -> RevocationLists:
        authority.revoke(parts[0], *revoked)
        path.write_bytes(b"".join(part.read_bytes() for part in parts))
        return RevocationLists(path, [authority.file, middle.file, lowest.file])

    before = lists()
    for client in (*clients.values(), direct):
        before.check(client)
    after = lists(middle.file)
    for client in clients.values():
        with pytest.raises(Unauthenticated, match="CN=middle has been revoked"):
            after.check(client)
    after.check(direct)


def test_certificates_below_an_expired_list_are_refused(
    authority: Authority, path: Path, tmp_path: Path
) -> None:
    middle = Authority(tmp_path, "middle", authority)
    client = middle.issue("client")[0].read_bytes()
    parts = [tmp_path / f"{number}.crl" for number in range(2)]
    authority.revoke(parts[0], days=-1)
    middle.revoke(parts[1])
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    lists = RevocationLists(path, [authority.file, middle.file])
    with pytest.raises(Unauthenticated, match="revocation list of CN=authority has expired"):
        lists.check(client)
