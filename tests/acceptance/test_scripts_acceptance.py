"""The scripts of this folder, in a moderate size."""

import pytest

from tests.acceptance.scripts import run_script


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("crashes.py --kills 60 --jobs 6000", id="kills lose and repeat no query"),
        pytest.param(
            "crashes.py --kills 40 --jobs 800 --work stages", id="nor any of one in stages"
        ),
        pytest.param(
            "crashes.py --kills 8 --jobs 80 --work images", id="kills lose and repeat no result"
        ),
        pytest.param(
            "crashes.py --kills 20 --jobs 130 --work deployments",
            id="nor while an engine is deployed",
        ),
        pytest.param("takeovers.py --takeovers 10", id="takeovers lose and repeat nothing"),
        pytest.param(
            "takeovers.py --takeovers 3 --kinds kill --agents 200", id="nor with many agents"
        ),
        pytest.param("power_loss.py --cuts 500 --seed 1", id="power cuts lose nothing"),
        pytest.param("power_loss.py --cuts 500 --seed 2", id="nor do others"),
        pytest.param("malformed.py --messages 150000", id="malformed messages confuse nobody"),
        pytest.param("frame_sequences.py", id="frames disturb no other client"),
        pytest.param("mutated_models.py --count 1000", id="mutated models kill no agent"),
        pytest.param("overload.py --seconds 20", id="few more miss their deadlines than must"),
        pytest.param("overload.py --seconds 20 --policy edf", id="nor under another policy"),
        pytest.param("soak.py --requests 1000000", id="memory does not grow"),
    ],
)
def test_fleet_withstands(command: str) -> None:
    run_script(*command.split())
