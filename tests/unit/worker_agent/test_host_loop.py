"""Main loop of an engine host, with a model that is a stub."""

import socket
from unittest.mock import Mock

from synergai.domain import BatchTimes
from synergai.errors import OutOfMemory
from worker_agent.host.batches import GROW_AFTER, BatchLimit
from worker_agent.host.loop import HostLoop
from worker_agent.ipc.frames import RunQuery


def serve(queries: int, limit: BatchLimit, error: Exception) -> list[int]:
    """Serve queries that cannot be decoded; return the ids of the runs that tried it."""
    model = Mock(batch_limit=limit, interruptible=None)
    agent, host = socket.socketpair()
    tried: list[int] = []

    def decode(query: RunQuery) -> None:
        tried.append(query.run_id)
        if query.run_id == queries:
            agent.shutdown(socket.SHUT_WR)
        raise error

    model.codec.decode.side_effect = decode
    with agent, host:
        for number in range(queries):
            agent.sendall(RunQuery(number + 1, b"", BatchTimes((1.0, 1.5))).encode())
        HostLoop(host, model, "", Mock(), Mock(), Mock()).serve()
    return tried


def test_queries_that_lack_memory_alone_let_no_batch_grow() -> None:
    limit = BatchLimit(8)
    limit.failed(2)
    tried = serve(GROW_AFTER, limit, OutOfMemory("no memory is left"))
    assert len(tried) == GROW_AFTER
    assert limit.rows == 1


def test_query_whose_inputs_break_the_preprocessing_does_not_end_the_host() -> None:
    assert set(serve(3, BatchLimit(8), ValueError("an image without pixels"))) == {1, 2, 3}
