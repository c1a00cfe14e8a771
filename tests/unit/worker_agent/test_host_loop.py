"""Main loop of an engine host, with a model that is a stub."""

import socket
from unittest.mock import Mock

from synergai.domain import BatchTimes
from synergai.errors import OutOfMemory
from worker_agent.host.batches import GROW_AFTER, BatchLimit
from worker_agent.host.loop import HostLoop
from worker_agent.ipc.frames import RunQuery


def test_queries_that_lack_memory_alone_let_no_batch_grow() -> None:
    limit = BatchLimit(8)
    limit.failed(2)
    model = Mock(batch_limit=limit, interruptible=None)
    agent, host = socket.socketpair()

    def decode(query: RunQuery) -> None:
        if query.run_id == GROW_AFTER:
            agent.shutdown(socket.SHUT_WR)
        raise OutOfMemory("no memory is left")

    model.codec.decode.side_effect = decode
    with agent, host:
        for run_id in range(1, GROW_AFTER + 1):
            agent.sendall(RunQuery(run_id, b"", BatchTimes((1.0, 1.5))).encode())
        HostLoop(host, model, "", Mock(), Mock(), Mock()).serve()
    assert model.codec.decode.call_count == GROW_AFTER
    assert limit.rows == 1
