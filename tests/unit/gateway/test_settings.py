"""Settings of the gateway."""

from __future__ import annotations

import pytest

from gateway.settings import GatewaySettings
from synergai.errors import InvalidSettings


@pytest.mark.parametrize(
    ("option", "known"), [("policy", "be, edf, fifo"), ("chooser", "allowance")]
)
def test_unknown_plug_in_is_refused_with_the_known_ones_before_anything_starts(
    option: str, known: str
) -> None:
    with pytest.raises(
        InvalidSettings, match=rf"--{option}: 'nope' is not in .*available.*{known}"
    ):
        GatewaySettings.load({option: "nope"})
    assert GatewaySettings.load({"policy": "fifo"}).policy == "fifo"
