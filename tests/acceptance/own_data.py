"""Run a model over images of a client while gateway, agents and engine hosts are killed.

    python tests/acceptance/own_data.py --images 20000 --kills 40 --seed 1    # on a quiet machine

The images are uploaded, with interruptions, and a job runs over them on three workers. At the end,
every image must have exactly one result, equal to that of a direct request.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.protocol.arrays import build_request
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from tests.acceptance.fleets import HOST, KilledFleet
from tests.acceptance.scripts import verdict
from tests.tiny_images import picture, save_image_engines

ENGINE: Final = "colours"
INPUT: Final = "input:0"
AGENTS: Final = ("left", "middle", "right")
VICTIMS: Final = ("gateway", *AGENTS, HOST)
PAUSE_S: Final = 1.5
"""Mean time between a restart and the next kill."""
WIDTH: Final = 900
"""Images take long to decode, so that most kills meet a running job."""
MESSAGE_BYTES: Final = 2 << 20
DIED_TWICE: Final = "the engine failed at this input"
"""What an image's result says if the host was killed twice while it computed it."""
_CALL_S: Final = 10.0
_END_S: Final = 1800.0


@dataclass
class Outcome:
    """What the test has seen.

    Attributes:
        errors: what was wrong.
        results: serialised responses and errors by image.
        kills: number of kills.
        interruptions: number of uploads that were cut off.
    """

    errors: list[str] = field(default_factory=list)
    results: dict[int, jobs_pb2.JobResult] = field(default_factory=dict)
    kills: int = 0
    interruptions: int = 0


def image_requests() -> list[bytes]:
    """Return requests with different images."""
    colours = ("red", "green", "blue")
    pictures = [
        picture(colour, suffix, height, WIDTH)
        for colour in colours
        for suffix in (".jpg", ".png")
        for height in (WIDTH - 1, WIDTH)
    ]
    return [
        build_request(ENGINE, {INPUT: np.array([each], object)}).SerializeToString()
        for each in pictures
    ]


def messages(
    upload_id: str, requests: Sequence[bytes], first: int, count: int
) -> Iterator[jobs_pb2.UploadRequest]:
    """Yield the messages of an upload from an input on; the requests repeat."""
    yield jobs_pb2.UploadRequest(upload_id=upload_id)
    message = jobs_pb2.UploadRequest(first=first)
    size = 0
    for index in range(first, count):
        request = requests[index % len(requests)]
        message.inputs.add(name=f"image {index}", request=request)
        size += len(request)
        if size >= MESSAGE_BYTES:
            yield message
            message, size = jobs_pb2.UploadRequest(first=index + 1), 0
    if message.inputs:
        yield message


class Client:
    """Uploads, submits and reads until it succeeds."""

    def __init__(self, address: str, engine: str, outcome: Outcome) -> None:
        self._address = address
        self._engine = engine
        self._outcome = outcome

    @contextlib.contextmanager
    def _stub(self) -> Iterator[jobs_pb2_grpc.JobsStub]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options=options) as channel:
            yield jobs_pb2_grpc.JobsStub(channel)

    def upload(self, requests: Sequence[bytes], count: int) -> str:
        """Upload the inputs; return the id of the upload."""
        upload_id, stored = str(uuid.uuid4()), 0
        while stored < count:
            try:
                with self._stub() as stub:
                    for receipt in stub.Upload(messages(upload_id, requests, stored, count)):
                        stored = max(stored, receipt.stored)
            except grpc.RpcError:
                self._outcome.interruptions += 1
                time.sleep(0.1)
        return upload_id

    def submit(self, **spec: object) -> str:
        """Submit a job; return its id."""
        key = str(uuid.uuid4())
        while True:
            request = jobs_pb2.SubmitRequest(
                spec=jobs_pb2.JobSpec(engine=self._engine, **spec),  # type: ignore[arg-type]  # the callers are below
                idempotency_key=key,
            )
            with contextlib.suppress(grpc.RpcError), self._stub() as stub:
                return stub.Submit(request, timeout=_CALL_S).id
            time.sleep(0.1)

    def follow(self, job_id: str, count: int) -> None:
        """Read the results of a job, across interruptions, until there are all."""
        cursor, outcome = 0, self._outcome
        deadline = time.monotonic() + _END_S
        while cursor < count and time.monotonic() < deadline:
            request = jobs_pb2.ResultsRequest(job_id=job_id, cursor=cursor, follow=True)
            with contextlib.suppress(grpc.RpcError), self._stub() as stub:
                for batch in stub.Results(request, timeout=_END_S):
                    cursor = batch.cursor
                    for result in batch.results:
                        if result.index in outcome.results:
                            outcome.errors.append(f"image {result.index} has two results")
                        outcome.results[result.index] = result
            time.sleep(0.05)

    def seconds(self, job_id: str) -> float:
        """Wait for the end of a job; return the time from its first dispatch."""
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.RpcError), self._stub() as stub:
                job = stub.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=_CALL_S)
                if job.state >= jobs_pb2.JOB_STATE_SUCCEEDED:
                    if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
                        self._outcome.errors.append(f"job {job_id} ended: {job.reason}")
                    return job.actual_s
            time.sleep(0.05)
        self._outcome.errors.append(f"job {job_id} is stuck")
        return float("inf")


def direct_answers(address: str, requests: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Return the outputs of each request, sent on its own."""
    with grpc.insecure_channel(address) as channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        answers: list[Sequence[bytes]] = []
        for data in requests:
            request = oip.ModelInferRequest.FromString(data)
            request.model_name = ENGINE
            answers.append(list(stub.ModelInfer(request, timeout=60).raw_output_contents))
        return answers


def find_errors(
    outcome: Outcome, count: int, answers: Sequence[Sequence[bytes]]
) -> tuple[list[str], int]:
    """Return what is wrong with the results, and how many images lost their host twice."""
    errors, died = list(outcome.errors), 0
    for index in range(count):
        result = outcome.results.get(index)
        if result is None:
            errors.append(f"image {index} has no result")
        elif result.error.startswith(DIED_TWICE):
            died += 1
        elif result.error:
            errors.append(f"image {index} failed: {result.error}")
        else:
            response = oip.ModelInferResponse.FromString(result.response)
            if list(response.raw_output_contents) != list(answers[index % len(answers)]):
                errors.append(f"image {index} has another result than the direct request")
            if result.name != f"image {index}":
                errors.append(f"image {index} is called {result.name!r}")
    return errors, died


def run(images: int, kills: int, seed: int, directory: Path) -> list[str]:
    """Run the test and print its figures; return the errors."""
    rng, outcome = random.Random(seed), Outcome()
    fleet = KilledFleet(directory / "run", save_image_engines(directory / "models"), AGENTS)
    with fleet.local:
        fleet.start()
        client = Client(fleet.local.address, ENGINE, outcome)
        requests = image_requests()
        answers = direct_answers(fleet.local.address, requests)
        ended = threading.Event()

        def kill_all() -> None:
            while outcome.kills < kills and not ended.wait(rng.expovariate(1 / PAUSE_S)):
                outcome.kills += fleet.kill(rng.choice(VICTIMS), rng)

        killer = threading.Thread(target=kill_all)
        killer.start()
        try:
            upload_id = client.upload(requests, images)
            job_id = client.submit(upload_id=upload_id)
            client.follow(job_id, images)
            client.seconds(job_id)
        finally:
            ended.set()
            killer.join()
        errors, died = find_errors(outcome, images, answers)
    print(
        f"{images:,} images, {outcome.kills} kills, {outcome.interruptions} interruptions of the "
        f"upload: {len(outcome.results):,} results, {died} images whose host was killed twice"
    )
    return errors


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep state and logs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        errors = run(options.images, options.kills, options.seed, directory)
    return verdict(errors)


if __name__ == "__main__":
    sys.exit(main())
