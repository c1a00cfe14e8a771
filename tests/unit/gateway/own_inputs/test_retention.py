"""How long the data of jobs is kept."""

import asyncio
import errno
from typing import Any

import pytest

from gateway.entry.access.caller import UNRESTRICTED
from gateway.jobs.own_inputs import Retention
from gateway.journal.data_store import DataKey
from gateway.journal.store import StoreFull
from synergai.errors import NotFound
from synergai.v1 import hub_pb2
from tests.unit.gateway.own_inputs.conftest import SPEC, OwnDataHarness

DAY_S = 86_400.0


async def test_data_is_deleted_when_it_is_no_longer_kept(harness: OwnDataHarness) -> None:
    worker = harness.add_worker()
    now = harness.clock.to_unix(harness.clock.now())
    await harness.upload(1, upload_id="unused")
    await harness.upload(1)
    status = await harness.jobs.submit(UNRESTRICTED, SPEC)

    async def sweep(after_s: float) -> set[str]:
        kept = Retention(
            harness.store,
            harness.journal,
            lambda: now + after_s,
            results_kept_s=1000.0,
        )
        await kept.sweep()
        return {key.name for key in harness.store.stored()}

    assert await sweep(0.9 * DAY_S) == {"unused", "up", status.id}
    assert await sweep(1.1 * DAY_S) == {"up", status.id}
    [assignment], _ = await harness.next_orders(worker)
    harness.report(worker, assignment, 1, outcome=hub_pb2.OUTCOME_COMPLETED)
    await harness.flush_journal()
    await harness.jobs.close()
    assert await sweep(900.0) == {"up", status.id}
    assert await sweep(1100.0) == set()
    assert harness.store.bytes == 0
    with pytest.raises(NotFound, match="no longer kept"):
        await harness.read(status.id)


async def test_retention_goes_on_after_a_failure(
    harness: OwnDataHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.upload(1)
    monkeypatch.setattr("gateway.jobs.own_inputs._INTERVAL_S", 0.0)
    uses, failing = harness.journal.jobs_over_uploads, [StoreFull(), OSError(errno.EIO, "failed")]

    def jobs_over_uploads() -> Any:
        if failing:
            raise failing.pop()
        return uses()

    monkeypatch.setattr(harness.journal, "jobs_over_uploads", jobs_over_uploads)
    retention = Retention(harness.store, harness.journal, lambda: 1e12, results_kept_s=1.0)
    running = asyncio.create_task(retention.run())
    deleted, delete = asyncio.Event(), harness.store.delete

    async def tell(key: DataKey) -> bool:
        deleted.set()
        return await delete(key)

    monkeypatch.setattr(harness.store, "delete", tell)
    async with asyncio.timeout(30):
        await deleted.wait()
    running.cancel()
    await asyncio.wait([running])
