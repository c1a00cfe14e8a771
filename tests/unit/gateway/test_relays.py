"""Relaying of tensors between workers."""

from gateway.fleet.worker import ConnectedWorker, Order, SendTensors
from gateway.hub.connections import AgentConnection, AgentConnections
from gateway.hub.work_streams import MOST_WANTED, Relays
from gateway.monitoring.metrics import Metrics
from synergai.runtime.send_queue import SendQueue
from synergai.v1.hub_pb2 import Wanted
from synergai.wire.work_messages import RelayedTensors, Reports
from tests.unit.gateway.conftest import make_worker


class Fleet:
    """Workers `holder`, `wants` and `other`, whose orders are read by the test."""

    def __init__(self) -> None:
        self.connections = AgentConnections(Metrics())
        self.relays = Relays(self.connections)
        self.workers = {name: self._worker(name) for name in ("holder", "wants", "other")}

    def _worker(self, name: str) -> ConnectedWorker:
        worker = make_worker(name)
        worker.orders = SendQueue[Order](MOST_WANTED * 4)
        self.connections.register(AgentConnection(), worker)
        return worker

    def want(self, token: str, holder: str = "holder") -> None:
        wanted = Wanted(token=token, worker_id=holder)
        self.relays.apply(self.workers["wants"], Reports(wanted=[wanted]))

    def relay(self, name: str, token: str, *contents: bytes) -> None:
        self.relays.apply(self.workers[name], Reports(relayed=[RelayedTensors(token, contents)]))

    def orders(self, name: str) -> list[Order]:
        return self.workers[name].orders.get_batch_nowait()


def test_tensors_pass_from_their_holder_to_the_worker_that_wants_them() -> None:
    fleet = Fleet()
    fleet.want("token")
    assert fleet.orders("holder") == [SendTensors("token")]
    fleet.relay("holder", "token", b"tensors")
    assert fleet.orders("wants") == [RelayedTensors("token", (b"tensors",))]
    fleet.relay("holder", "token", b"tensors")
    assert not fleet.orders("wants"), "they are wanted no more"


def test_only_the_holder_can_answer() -> None:
    fleet = Fleet()
    fleet.want("token")
    fleet.relay("other", "token", b"false")
    assert not fleet.orders("wants")


def test_tensors_of_a_worker_that_is_not_connected_are_lost_at_once() -> None:
    fleet = Fleet()
    fleet.want("token", "unknown")
    assert fleet.orders("wants") == [RelayedTensors("token", ())]


def test_tensors_of_a_worker_that_leaves_are_lost() -> None:
    fleet = Fleet()
    fleet.want("token")
    fleet.relays.left(fleet.workers["holder"])
    assert fleet.orders("wants") == [RelayedTensors("token", ())]


def test_worker_that_wants_many_tensors_ends_no_other_work_stream() -> None:
    fleet = Fleet()
    for number in range(5 * MOST_WANTED):
        fleet.want(f"token-{number}")
    holder = fleet.workers["holder"].orders
    assert not holder.closed
    assert len(fleet.orders("holder")) == 2 * MOST_WANTED
    fleet.want("later")
    assert fleet.orders("holder") == [SendTensors("later")]


def test_tensors_that_were_wanted_longest_are_forgotten_first() -> None:
    fleet = Fleet()
    for number in range(MOST_WANTED + 1):
        fleet.want(f"token-{number}")
    for number in (0, 1, MOST_WANTED):
        fleet.relay("holder", f"token-{number}", b"tensors")
    tokens = [order.token for order in fleet.orders("wants") if isinstance(order, RelayedTensors)]
    assert tokens == ["token-1", f"token-{MOST_WANTED}"]
