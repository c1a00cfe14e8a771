"""The cost of preloads, and of those that nothing used."""

import pytest

from gateway.monitoring.counts import PreloadCosts
from synergai.core.scheduling.events import Load
from synergai.domain import Configuration, EngineName, Session
from synergai.runtime.send_queue import SendQueue
from synergai.wire.converters import session_from_proto
from tests.unit.gateway.conftest import GatewayHarness, make_worker

FIRST, SECOND = (Session(EngineName(name), Configuration(1)) for name in ("first", "second"))


def test_loads_that_nothing_has_used_are_counted_until_a_query_comes() -> None:
    ledger = PreloadCosts()
    worker = make_worker()
    for session in (FIRST, SECOND):
        ledger.ordered(worker.id, session, 3.0)
    ledger.loaded(worker.id, FIRST, 2.0)
    ledger.loaded(worker.id, SECOND, 0.0)  # for which its estimate counts
    assert ledger.loads == 2
    assert ledger.total_s == pytest.approx(5.0)
    ledger.used(worker.id, FIRST)
    assert ledger.unused_s == pytest.approx(3.0)
    ledger.dropped(worker.id, SECOND)
    ledger.dropped(worker.id, FIRST)
    assert ledger.unused_s == pytest.approx(3.0)
    assert not ledger.waiting


def test_a_load_that_is_needed_before_its_end_does_not_count() -> None:
    ledger = PreloadCosts()
    worker = make_worker()
    ledger.ordered(worker.id, FIRST, 3.0)
    ledger.used(worker.id, FIRST)
    ledger.loaded(worker.id, FIRST, 2.0)
    assert ledger.loads == 0


def test_what_a_worker_takes_with_it_was_of_no_use() -> None:
    ledger = PreloadCosts()
    worker, other = make_worker("w1"), make_worker("w2")
    for each in (worker, other):
        ledger.ordered(each.id, FIRST, 3.0)
        ledger.loaded(each.id, FIRST, 2.0)
    ledger.ordered(worker.id, SECOND, 3.0)
    ledger.left(worker.id)
    ledger.used(other.id, FIRST)
    assert ledger.unused_s == pytest.approx(2.0)


async def test_the_order_to_preload_says_so(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    worker.control = SendQueue(100)
    harness.dispatcher._execute(Load(worker.id, FIRST, 3.0), 0.0)
    harness.catalogue.add_known([SECOND.engine])
    harness.catalogue.unload(SECOND.engine)
    harness.dispatcher._execute(Load(worker.id, SECOND, 3.0), 0.0)
    [order] = worker.control.get_batch_nowait()
    assert order.load.preload
    assert session_from_proto(order.load.session) == FIRST
