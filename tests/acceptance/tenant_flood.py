"""Flood a gateway as one tenant: with requests, streams, jobs and connections.

    python tests/acceptance/tenant_flood.py HOST:PORT SECONDS TOKEN ENGINE

It ignores how long it is told to wait, and prints how often it got each status code as JSON.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc

from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.v1 import jobs_pb2, jobs_pb2_grpc

CONNECTIONS = 4
CALLS = 8
"""Concurrent calls of each kind on a connection."""


class Flood:
    """Calls of one tenant, as fast as the gateway answers.

    Attributes:
        codes: number of calls, or of messages in streams, by kind and status.
    """

    def __init__(self, address: str, seconds: float, token: str, engine: str) -> None:
        self._address = address
        self._ends_at = time.monotonic() + seconds
        self._metadata = grpc.aio.Metadata(("authorization", f"Bearer {token}"))
        self._engine = engine
        self._request = oip.ModelInferRequest(model_name=engine, raw_input_contents=[bytes(4)])
        self._request.inputs.add(name="x", datatype="FP32", shape=[1])
        self.codes: Counter[str] = Counter()

    async def run(self) -> None:
        """Flood until the time is over."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(self._connect())

    async def _connect(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            infer = oip_grpc.GRPCInferenceServiceStub(channel)
            jobs = jobs_pb2_grpc.JobsStub(channel)
            spec = jobs_pb2.JobSpec(engine=self._engine, queries=100)

            async def request() -> None:
                await infer.ModelInfer(self._request, timeout=5, metadata=self._metadata)

            async def submit() -> None:
                submission = jobs_pb2.SubmitRequest(spec=spec)
                await jobs.Submit(submission, timeout=5, metadata=self._metadata)

            async def stream() -> None:
                call = infer.ModelStreamInfer(timeout=5, metadata=self._metadata)
                try:
                    # Writing to a stream that the gateway has ended fails without its status.
                    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        for _ in range(50):
                            await call.write(self._request)
                        await call.done_writing()
                    async for response in call:
                        refused = response.infer_response.parameters["status"].string_param
                        self.codes[f"message {refused or 'OK'}"] += 1
                finally:
                    call.cancel()

            async with asyncio.TaskGroup() as group:
                for act in (request, submit, stream):
                    for _ in range(CALLS):
                        group.create_task(self._repeat(act))

    async def _repeat(self, act: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._ends_at:
            try:
                await act()
                code = "OK"
            except grpc.aio.AioRpcError as error:
                code = error.code().name
            self.codes[f"{act.__name__} {code}"] += 1


if __name__ == "__main__":
    flood = Flood(sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4])
    asyncio.run(flood.run())
    print(json.dumps(flood.codes))
