"""Open and reset inference calls on one connection, as fast as the server accepts the bytes.

A connection that the server closes is replaced.

python tests/acceptance/reset_calls.py HOST:PORT CALLS ENGINE
"""

import contextlib
import sys

from synergai.oip import inference_pb2 as oip
from tests import http2

BATCH = 100


def main(address: str, calls: int, engine: str) -> None:
    """Send the calls, each with a complete request of one number."""
    path = "/inference.GRPCInferenceService/ModelInfer"
    request = oip.ModelInferRequest(model_name=engine, raw_input_contents=[bytes(4)])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    data = request.SerializeToString()
    with contextlib.ExitStack() as connections:
        connection = connections.enter_context(http2.Http2Connection(address))
        for first in range(1, 2 * calls, 2 * BATCH):
            try:
                connection.send(
                    http2.headers(stream, path) + http2.message(stream, data) + http2.reset(stream)
                    for stream in range(first, first + 2 * BATCH, 2)
                )
                closed = connection.is_closed()  # reads, as an attacker would
            except OSError:
                closed = True
            if closed:
                connections.close()
                connection = connections.enter_context(http2.Http2Connection(address))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
