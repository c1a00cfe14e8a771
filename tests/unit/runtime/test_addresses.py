"""Network addresses."""

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


def test_target_without_a_port_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidInput, match=r"'localhost' has no port: .* such as localhost:8001"):
        check_target("localhost")
    for target in ("localhost:8001", "[::1]:8001", "unix:/run/gateway", "dns:///gateway:8001"):
        assert check_target(target) == target
