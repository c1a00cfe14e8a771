import pytest

from synergai.errors import InvalidInput
from synergai.runtime.addresses import check_target, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("[::1]", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("target", ["localhost", "[::1]"])
def test_target_without_a_port_is_refused_with_what_to_write(target: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_target(target)
    assert str(refused.value) == (f"{target!r} has no port: write HOST:PORT, such as {target}:8001")


def test_target_with_a_port_or_a_path_is_taken_as_it_is() -> None:
    for target in ("localhost:8001", "[::1]:8001", "unix:/run/gateway", "dns:///gateway:8001"):
        assert check_target(target) == target
