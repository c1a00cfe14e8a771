from collections.abc import Callable

from synergai.v1.hub_pb2 import Pull
from synergai.wire.work_messages import Reports
from worker_agent.exchange import HeldTensorStore, Pulls
from worker_agent.peers import Peers


async def no_pulls(_pull: Pull, _request: object) -> bytes:
    raise NotImplementedError


def new_pulls(held: HeldTensorStore, send: Callable[[Reports], None] = lambda _: None) -> Pulls:
    return Pulls(held, Peers(1 << 20), "127.0.0.1", send)
