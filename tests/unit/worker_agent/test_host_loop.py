"""Main loop of an engine host, with a model that is a stub."""

import socket
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from synergai.domain import BatchTimes, Fault, TensorSpec
from synergai.errors import OutOfMemory
from synergai.oip.inference_pb2 import ModelInferRequest
from tests.engines import new_engine
from worker_agent.host import query_codec
from worker_agent.host.batches import GROW_AFTER, BatchLimit
from worker_agent.host.loop import HostLoop, _encode
from worker_agent.host.query_codec import DecodedQuery, QueryCodec
from worker_agent.ipc import RunQuery


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


@pytest.mark.parametrize("output", [np.zeros(300, np.float32), np.array([b"x" * 1200], object)])
def test_response_that_the_socket_does_not_take_fails_alone(
    monkeypatch: pytest.MonkeyPatch, output: NDArray[Any]
) -> None:
    monkeypatch.setattr(query_codec, "MAX_RESPONSE_BYTES", 1000)
    specs = (TensorSpec("x", "FP32", (-1,)),)
    processing = Mock()
    processing.requested_outputs.side_effect = lambda _message, outputs: outputs
    model = Mock(codec=QueryCodec(Mock(), new_engine("m", specs, specs), processing, Mock()))
    decoded = DecodedQuery(RunQuery(1, b""), ModelInferRequest(), {}, ("x",), 0.0)
    ended = _encode(model, decoded, [output], 0.0, 1)
    assert ended.fault is Fault.RESPONSE_TOO_LARGE
    assert "the limit is 1,000" in ended.detail
    assert _encode(model, decoded, [output[:0]], 0.0, 1).fault is Fault.UNSPECIFIED
