import pytest

from gateway.gateway_settings import GatewaySettings
from synergai.errors import InvalidSettings


def test_unknown_policy_is_refused_with_the_known_ones_before_anything_starts() -> None:
    with pytest.raises(
        InvalidSettings, match=r"--policy: 'nope' is not in .*available.*be, edf, fifo"
    ):
        GatewaySettings.load({"policy": "nope"})
    assert GatewaySettings.load({"policy": "fifo"}).scheduling.policy == "fifo"


@pytest.mark.parametrize("url", ["", "postgresql://a@db/synergai"])
def test_database_of_the_journal_is_kept_as_given(url: str) -> None:
    assert GatewaySettings.load({"journal": url}).journal == url
