"""Orders to preload sessions."""

from synergai.core.scheduling.events import Load
from synergai.domain import Configuration, EngineName, Session
from synergai.runtime.send_queue import SendQueue
from synergai.wire.converters import session_from_proto
from tests.unit.gateway.conftest import GatewayHarness

FIRST, SECOND = (Session(EngineName(name), Configuration(1)) for name in ("first", "second"))


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
