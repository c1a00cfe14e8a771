"""Send requests one after the other without retrying, and say what became of them.

    python -m tests.acceptance.steady_requests HOST:PORT SECONDS [DEADLINE]

Prints the number of requests by status, and the longest time without a successful one, as JSON.
At least one is sent. The deadline of each is 5 s by default.
"""

import collections
import json
import struct
import sys
import time
from typing import Final

import grpc

from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from tests.acceptance.kubernetes_release import ENGINE

_PAUSE_S: Final = 0.02
_DEADLINE_S: Final = 5.0


def main() -> None:
    """Send requests."""
    target, seconds = sys.argv[1], float(sys.argv[2])
    deadline_s = float(sys.argv[3]) if len(sys.argv) > 3 else _DEADLINE_S
    request = oip.ModelInferRequest(model_name=ENGINE, raw_input_contents=[struct.pack("f", 1.5)])
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    statuses: collections.Counter[str] = collections.Counter()
    longest = 0.0
    # A client that returns soon: the default waits up to two minutes.
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(target, options) as channel:
        infer = oip_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        last = time.monotonic()
        end = last + seconds
        while not statuses or time.monotonic() < end:
            try:
                infer(request, timeout=deadline_s)
            except grpc.RpcError as error:
                statuses[error.code().name] += 1
            else:
                now = time.monotonic()
                longest = max(longest, now - last)
                last = now
                statuses["OK"] += 1
            time.sleep(_PAUSE_S)
    sys.stdout.write(json.dumps({"statuses": statuses, "longest_outage_s": longest}) + "\n")


if __name__ == "__main__":
    main()
