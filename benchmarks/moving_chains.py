"""Jobs over stages under interference: ``python -m benchmarks.moving_chains [SCENARIOS]``.

Two agents with a core each have several cuts of a network. Other work slows one of them down. In
each scenario, the rate from two seconds after its begin is compared with that of the best single
cut under the same interference, which is measured before.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from itertools import islice, repeat
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from examples.pipeline import network
from examples.pipeline.interference import busy
from synergai import SyncClient
from synergai.testing import LocalFleet, reserved_port

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from synergai.client.sync import SyncJobHandle
    from synergai.domain import EngineName

BLOCKS = 12
CUTS = (4, 6, 8)
CORES = {"left": 0, "right": 1}
SETTLED_S = 2.0
MEASURED_S = 5.0
FIXED_S = 3.0
PAUSE_S = 3.0
INTERFERENCE: list[tuple[str, int]] = [(name, count) for name in CORES for count in (1, 2)]


def main() -> None:
    """Measure fixed cuts, then the gateway's choice in drawn scenarios."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        network.build(folder / "models", BLOCKS)
        chains = [network.split(folder / "models", [cut]) for cut in CUTS]
        fleet = stack.enter_context(LocalFleet(folder / "fleet"))
        fleet.start_gateway()
        for place, name in enumerate(CORES):
            for chain in chains:
                shutil.copytree(folder / "models" / chain[place], folder / name / chain[place])
            port = stack.enter_context(reserved_port())
            options = ["--threads", "1", "--cores", str(CORES[name]), "--peer-port", str(port)]
            fleet.start_agent(name, models=folder / name, options=options)
        fleet.wait_for_workers(len(CORES))
        client = stack.enter_context(SyncClient(fleet.address))
        for stage in (stage for chain in chains for stage in chain):
            client.load(stage)
        job = client.submit(network.ENGINE, inputs=islice(repeat(network.image(0)), 100_000))
        best = fixed_rates(client, job, chains)
        kept = [scenario(job, best, number) for number in range(count)]
        job.cancel()
    print(f"of the best cut: mean {mean(kept):.1%}, least {min(kept):.1%}")


def fixed_rates(
    client: SyncClient, job: SyncJobHandle, chains: list[list[EngineName]]
) -> dict[tuple[str, int], float]:
    """Return the rate of the best single cut by interference."""
    best: dict[tuple[str, int], float] = {}
    for chain in chains:
        others = [stage for other in chains if other is not chain for stage in other]
        for stage in others:
            client.unload(stage)
        time.sleep(PAUSE_S)
        for where in INTERFERENCE:
            with interference(where):
                time.sleep(1.0)
                found = rate(job, FIXED_S)
            print(f"{chain[0]:16} {where[1]} at {where[0]:6} {found:6.2f}/s")
            best[where] = max(best.get(where, 0.0), found)
        for stage in others:
            client.load(stage)
    time.sleep(PAUSE_S)
    return best


def scenario(job: SyncJobHandle, best: dict[tuple[str, int], float], number: int) -> float:
    """Return what the gateway's choice keeps of the best cut's rate."""
    where = random.Random(number).choice(INTERFERENCE)
    before = job.status().stages
    with interference(where):
        time.sleep(SETTLED_S)
        found = rate(job, MEASURED_S)
        after = job.status().stages
    time.sleep(PAUSE_S)
    kept = found / best[where]
    cuts = f"{before[0]} -> {after[0]}"
    print(f"{number + 1:2}: {where[1]} at {where[0]:6} {found:6.2f}/s, {kept:6.1%}  {cuts}")
    return kept


def interference(where: tuple[str, int]) -> AbstractContextManager[None]:
    """Return other work on the core of a worker."""
    name, processes = where
    return busy(CORES[name], processes) if processes else nullcontext()


def rate(job: SyncJobHandle, seconds: float) -> float:
    """Return the queries per second of a job for some time."""
    begin, done = time.monotonic(), job.status().queries_done
    time.sleep(seconds)
    return (job.status().queries_done - done) / (time.monotonic() - begin)


if __name__ == "__main__":
    main()
