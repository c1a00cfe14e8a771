"""The access table, and commands that read it."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from gateway.entry.access.caller import Role
from gateway.entry.access.table import (
    AccessTable,
    AllowedWorkers,
    Quota,
    WatchedFile,
    read_access_table,
)
from synergai.cli.main import main
from synergai.errors import InvalidInput

TOKEN, WORKER_TOKEN = "0" * 64, "1" * 64
TABLE = f"""
[[clients]]
name = "camera-7"
tenant = "vision"
token_sha256 = "{TOKEN}"
expires = 2027-06-30T12:00:00Z

[[clients]]
name = "dashboards"
groups = ["operators"]
certificate = "spiffe://example.org/dashboards"

[[grants]]
to = ["camera-*"]
roles = ["infer"]
engines = ["resnet*"]

[[grants]]
to = ["group:operators"]
roles = ["observe", "operate"]
tenants = ["*"]

[[jwt]]
issuer = "https://login.example.org"
audience = "synergai"
keys = "https://login.example.org/jwks.json"

[tenants.vision]
max_priority = 5
requests_per_s = 200

[tenants.default]
requests_in_flight = 1

[[workers]]
id = "xavier-*"
worker_class = "agx-xavier"
token_sha256 = "{WORKER_TOKEN}"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.toml"


def test_grants_are_found_by_name_and_by_group(path: Path) -> None:
    path.write_text(TABLE)
    table = read_access_table(path)
    [infer] = table.grants_of("camera-7")
    assert infer.roles == {Role.INFER}
    [operate] = table.grants_of("dashboards", frozenset({"operators"}))
    assert Role.OPERATE in operate.roles
    # A client cannot become a member of a group by its name.
    assert table.grants_of("group:operators") == ()


def test_pattern_does_not_stand_for_anonymous_callers(path: Path) -> None:
    path.write_text('[[grants]]\nto = ["*", "anon*"]\nroles = ["infer"]')
    assert read_access_table(path).grants_of("anonymous") == ()
    path.write_text('[[grants]]\nto = ["anonymous"]\nroles = ["infer"]')
    assert len(read_access_table(path).grants_of("anonymous")) == 1


def test_empty_table_grants_nothing(path: Path) -> None:
    path.write_text("")
    table = read_access_table(path)
    assert table.grants_of("anonymous") == ()
    assert table.quota_of("any") == Quota()
    assert table.workers is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clients = 1", "clients must be a list, not an integer"),
        ("[[client]]", "there is no setting client; did you mean clients?"),
        (
            '[[grants]]\nto = ["a"]\nroles = ["root"]',
            "grants 1, roles 1 must be one of .*'root'",
        ),
        ('[[clients]]\nname = "a"', "client 'a' needs either token_sha256 or certificate"),
        ('[[clients]]\nname = "a b"\ncertificate = "x"', "'a b' is not a valid client name"),
        ('[[clients]]\nname = "anonymous"\ncertificate = "x"', "'anonymous' is reserved"),
        ('[[clients]]\nname = "a"\ntoken_sha256 = "ab"', "token_sha256"),
        (
            2 * '[[clients]]\nname = "a"\ncertificate = "x"\n',
            "two clients have the name 'a'",
        ),
        (
            2 * '[[jwt]]\nissuer = "i"\naudience = "a"\nkeys = "k"\n',
            r"two \[\[jwt\]\] have the issuer 'i'",
        ),
        (
            "[tenants.a]\nrequests_per_s = 0",
            "requests_per_s must be a number greater than 0",
        ),
        ("[tenants.a]\nmax_priority = 10", "max_priority must be an integer of at most 9"),
        (
            '[[clients]]\nname = "a"\ncertificate = "x"\nexpires = 2027-06-30T12:00:00',
            "clients 1, expires must have a time zone",
        ),
        ('[[workers]]\nid = "a"', "worker 'a' needs either token_sha256 or certificate"),
        (
            f'[[workers]]\nid = "a"\ncertificate = "x"\ntoken_sha256 = "{TOKEN}"',
            "worker 'a' needs either token_sha256 or certificate",
        ),
        ('[[workers]]\nid = "a"\ntoken_sha256 = "ab"', "token_sha256"),
        (
            (
                f'[[workers]]\nid = "a"\ntoken_sha256 = "{TOKEN}"\n'
                f'[[workers]]\nid = "b"\ntoken_sha256 = "{TOKEN}"'
            ),
            "two workers, or a client and a worker, have the token_sha256 '0000",
        ),
        (
            (
                f'[[clients]]\nname = "a"\ntoken_sha256 = "{TOKEN}"\n'
                f'[[workers]]\nid = "a"\ntoken_sha256 = "{TOKEN}"'
            ),
            "two workers, or a client and a worker, have the token_sha256 '0000",
        ),
        (
            '[[workers]]\nid = "edge-*"\nworker_class = "nx"\ncertificate = "edge"',
            r"certificate 'edge' needs \{id\}, because 'edge-\*' is a pattern",
        ),
        ('[[workers]]\nid = "a"\ncertificate = "{id}"', r"needs \{class\}, because '\*'"),
        (
            '[[workers]]\nid = "*"\ncertificate = "{class}.{id}"',
            r"needs a character between \{id\} and \{class\}",
        ),
        ("x = ", "Invalid value"),
    ],
)
def test_mistake_in_the_table_is_reported_with_its_place(
    path: Path, text: str, message: str
) -> None:
    path.write_text(text)
    with pytest.raises(InvalidInput, match=message) as error:
        read_access_table(path)
    assert "access.toml" in str(error.value)


def test_worker_may_have_several_rows_with_one_token(path: Path) -> None:
    row = f'[[workers]]\nid = "a"\ntoken_sha256 = "{TOKEN}"\n'
    path.write_text(f'{row}engines = ["a"]\n{row}engines = ["b"]\n')
    assert len(read_access_table(path).workers or ()) == 2


def test_missing_table_is_an_error(path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_access_table(path)


async def test_change_reaches_followers_and_an_invalid_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "number"
    path.write_text("1")

    def read() -> int:
        text = path.read_text()
        if not text.isdecimal():
            raise InvalidInput(f"{path}: {text!r} is not a number")
        return int(text)

    seen: list[int] = []
    watched = WatchedFile("number", path, read)
    watched.follow(seen.append)
    await watched.look()
    assert seen == [1]
    for text in ("20", "three", "400"):
        await asyncio.to_thread(path.write_text, text)
        await watched.look()
    assert seen == [1, 20, 400]
    assert watched.rejected == 1
    assert "keeping the previous number" in caplog.text


async def test_change_that_is_being_written_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")

    def read() -> str:
        text = path.read_text()
        if not text:  # an editor has just emptied the file
            path.write_text("20")
        return text

    watched = WatchedFile("number", path, read)
    seen: list[str] = []
    watched.follow(seen.append)
    await asyncio.to_thread(path.write_text, "")
    await watched.look()
    assert seen == ["1"]
    await watched.look()
    assert seen == ["1", "20"]


async def test_bug_in_one_follower_or_the_reader_does_not_end_the_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    watched = WatchedFile("number", path, lambda: 6 // int(path.read_text()))
    seen: list[int] = []

    def broken(number: int) -> None:
        if number == 3:
            raise KeyError(number)

    watched.follow(broken)
    watched.follow(seen.append)
    for text in ("02", "0", "003"):
        await asyncio.to_thread(path.write_text, text)
        await watched.look()
    assert seen == [6, 3, 2]
    assert watched.rejected == 1
    assert "keeping the previous number: integer division or modulo by zero" in caplog.text
    assert "did not follow the number" in caplog.text


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["access", *arguments])
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_token_is_printed_once_and_the_rows_have_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("token", "camera-7", "--tenant", "vision") == 0
    printed = capsys.readouterr()
    token = printed.out.strip()
    table = tmp_path / "access.toml"
    table.write_text(printed.err)
    [client] = read_access_table(table).clients
    assert (client.name, client.tenant) == ("camera-7", "vision")
    assert client.token_sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert len(token) >= 43
    assert token not in printed.err


@pytest.mark.parametrize(
    ("arguments", "worker_class"), [((), "*"), (("--worker-class", "agx-xavier"), "agx-xavier")]
)
def test_token_of_a_worker_is_printed_with_its_row(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    worker_class: str,
) -> None:
    assert run("token", "edge-1", "--worker", *arguments) == 0
    printed = capsys.readouterr()
    token = printed.out.strip()
    table = tmp_path / "access.toml"
    table.write_text(printed.err)
    read = read_access_table(table)
    assert read == AccessTable(
        workers=(
            AllowedWorkers(
                id="edge-1",
                worker_class=worker_class,
                token_sha256=hashlib.sha256(token.encode()).hexdigest(),
            ),
        )
    )
    assert len(token) >= 43
    assert token not in printed.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--worker", "edge 1"), "'edge 1' is not a valid worker id"),
        (("--worker", "edge-1", "--worker-class", "a b"), "'a b' is not a valid worker class"),
        (("--worker", "edge-1", "--tenant", "vision"), "workers have no tenant"),
        (("edge-1", "--worker-class", "nx"), "clients have no class"),
    ],
)
def test_token_is_made_for_a_worker_that_there_can_be(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    assert run("token", *arguments) != 0
    printed = capsys.readouterr()
    assert reason in printed.err
    assert "token_sha256" not in printed.err
    assert printed.out == ""


def test_check_prints_who_may_do_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        '[[clients]]\nname = "cam"\ntenant = "vision"\ncertificate = "cam.example.org"\n'
        '[[clients]]\nname = "idle"\ncertificate = "idle"\nexpires = 2020-01-01T00:00:00Z\n'
        '[[grants]]\nto = ["cam"]\nroles = ["observe", "infer"]\nengines = ["resnet*"]\n'
        'tenants = ["lab"]\n'
        '[[grants]]\nto = ["anonymous"]\nroles = ["infer"]\n'
        '[[grants]]\nto = ["nobody-*"]\nroles = ["infer"]\n'
    )
    assert run("check", str(table)) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert "cam certificate cam.example.org vision infer, observe resnet* vision, lab" in lines
    assert "anonymous none infer * its own" in lines
    assert "the credentials of 'idle' have expired" in printed.err
    assert "client 'idle' may do nothing" in printed.err
    assert "grant 3 is for no client: nobody-*" in printed.err


def test_check_prints_which_workers_may_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        f'[[workers]]\nid = "edge-*"\nworker_class = "nx"\ntoken_sha256 = "{TOKEN}"\n'
        f'[[workers]]\nid = "vm"\ntoken_sha256 = "{WORKER_TOKEN}"\nengines = ["a", "b*"]\n'
        '[[workers]]\nid = "*"\ncertificate = "x/{class}/{id}"\n'
    )
    assert run("check", str(table)) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert "edge-* nx token *" in lines
    assert "vm * token a, b*" in lines
    assert "* * certificate x/{class}/{id} *" in lines
    assert printed.err.splitlines() == [
        "workers 'edge-*' share a token: each may join as any other",
        "worker 'vm' may join as any class: its row has no worker_class",
    ]


def test_check_names_web_tokens_only_for_grants_that_they_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        '[[jwt]]\nissuer = "i"\naudience = "a"\nkeys = "jwks.json"\n'
        '[[grants]]\nto = ["ops-*", "group:cameras", "anonymous"]\nroles = ["infer"]\n'
        '[[grants]]\nto = ["jwt:alice", "*", "j?t:*", "[jk]*"]\nroles = ["observe"]\n'
        '[[grants]]\nto = ["ops-*", "jwtalice"]\nroles = ["operate"]\n'
    )
    assert run("check", str(table)) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert "jwt: group:cameras JSON web token by claim infer * its own" in lines
    assert "jwt: jwt:alice, *, j?t:*, [jk]* JSON web token by claim observe * its own" in lines
    assert "operate" not in printed.out
    assert "grant 3 is for no client: ops-*, jwtalice" in printed.err
