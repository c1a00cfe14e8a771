from pathlib import Path

import pytest

from gateway.entry.access.caller import Role
from gateway.entry.access.table import Quota, read_access_table
from synergai.errors import InvalidInput

TOKEN = "0" * 64
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


def test_missing_table_is_an_error(path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_access_table(path)
