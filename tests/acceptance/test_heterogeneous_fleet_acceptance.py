"""The example of a heterogeneous fleet: tight deadlines switch power modes."""

from pathlib import Path

import pytest

from examples.heterogeneous_fleet import workers
from examples.heterogeneous_fleet.__main__ import run
from examples.heterogeneous_fleet.rounds import Round
from synergai.errors import NotSupported


def modes_of(each: Round) -> list[str]:
    return [e.configuration.power_mode for result in each.results for e in result.executions]


def test_loose_deadlines_keep_frugal_modes_and_tight_ones_switch(tmp_path: Path) -> None:
    try:
        workers.check_cgroups()
    except NotSupported as error:
        pytest.skip(str(error))
    fast_modes = {worker.fast for worker in workers.WORKERS}
    loose, tight, loose_again = run(tmp_path / "built", tmp_path)
    for each in (loose, tight, loose_again):
        print(f"\n{modes_of(each)}, violated: {[result.violated for result in each.results]}")
    assert fast_modes.isdisjoint(modes_of(loose))
    assert fast_modes.intersection(modes_of(tight))
    assert fast_modes.isdisjoint(modes_of(loose_again))
    assert any(worker.switch_s > 0 for worker in tight.workers)
    assert not any(result.violated for each in (loose, loose_again) for result in each.results)
