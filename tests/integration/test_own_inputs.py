"""Jobs over the inputs of an upload, through a real gateway and real agents."""

import uuid
from collections.abc import Iterator, Sequence

import grpc
import numpy as np
import pytest

from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.protocol.arrays import build_request
from synergai.testing import LocalFleet
from synergai.v1 import jobs_pb2, jobs_pb2_grpc
from synergai.zoo.build import build
from tests.waiting import wait_until

ENGINE = "onnx_identity"
ENDED = jobs_pb2.JOB_STATE_SUCCEEDED


class Client:
    """Uploads inputs, submits jobs over them and reads their results."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.jobs = jobs_pb2_grpc.JobsStub(self.channel)
        self.inference = oip_grpc.GRPCInferenceServiceStub(self.channel)

    def upload(self, upload_id: str, inputs: Sequence[jobs_pb2.Input], first: int = 0) -> int:
        """Upload inputs, five in a message, and return how many are stored."""
        requests = [jobs_pb2.UploadRequest(upload_id=upload_id)]
        requests += [
            jobs_pb2.UploadRequest(first=first + at, inputs=inputs[at : at + 5])
            for at in range(0, len(inputs), 5)
        ]
        receipts = self.jobs.Upload(iter(requests), timeout=30, wait_for_ready=True)
        return [receipt.stored for receipt in receipts][-1]

    def submit(self, upload_id: str, key: str = "", max_failures: int | None = None) -> str:
        spec = jobs_pb2.JobSpec(engine=ENGINE, upload_id=upload_id, max_failures=max_failures)
        request = jobs_pb2.SubmitRequest(spec=spec, idempotency_key=key)
        return self.jobs.Submit(request, timeout=30, wait_for_ready=True).id

    def follow(self, job_id: str, cursor: int = 0) -> dict[int, jobs_pb2.JobResult]:
        """Read the results until the job has ended."""
        request = jobs_pb2.ResultsRequest(job_id=job_id, cursor=cursor, follow=True)
        found: dict[int, jobs_pb2.JobResult] = {}
        for batch in self.jobs.Results(request, timeout=60):
            for result in batch.results:
                assert result.index not in found
                found[result.index] = result
        return found

    def job(self, job_id: str) -> jobs_pb2.Job:
        return self.jobs.Get(jobs_pb2.GetRequest(job_id=job_id), timeout=30, wait_for_ready=True)

    def ended(self, job_id: str) -> jobs_pb2.Job:
        for job in self.jobs.Watch(jobs_pb2.WatchRequest(job_id=job_id), timeout=60):
            last = job
        return last


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    models = tmp_path_factory.mktemp("models")
    build(ENGINE, models)
    pictures = tmp_path_factory.mktemp("inputs")
    (pictures / "one.bin").write_bytes(b"one")
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_gateway()
        for name in ("left", "right"):
            fleet.start_agent(name, models=models, options=["--input-roots", str(pictures)])
        fleet.wait_for_workers(2)
        yield fleet


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    client = Client(fleet.address)
    with client.channel:
        yield client


def value_request(number: int) -> bytes:
    """Return the request of an input, which names another model and version."""
    message = build_request(ENGINE, {"x": np.full(1, number, np.float32)})
    message.model_name, message.model_version = "another", "7"
    return message.SerializeToString()


def inputs(count: int, bad: Sequence[int] = ()) -> list[jobs_pb2.Input]:
    return [
        jobs_pb2.Input(
            name=f"file {number}", request=b"\xff" if number in bad else value_request(number)
        )
        for number in range(count)
    ]


def new_id() -> str:
    return str(uuid.uuid4())


def test_interrupted_upload_continues_and_bad_inputs_fail_alone(client: Client) -> None:
    upload, every = new_id(), inputs(43, bad=(0, 17))
    assert client.upload(upload, every[:12]) == 12
    assert client.upload(upload, []) == 12
    assert client.upload(upload, every[10:], first=10) == 43
    job_id = client.submit(upload)
    results = client.follow(job_id)
    assert sorted(results) == list(range(43))
    assert {index for index, result in results.items() if result.error} == {0, 17}
    for index, result in results.items():
        assert result.name == f"file {index}"
        if not result.error:
            request = oip.ModelInferRequest.FromString(value_request(index))
            request.model_name, request.model_version = ENGINE, ""
            direct = client.inference.ModelInfer(request, timeout=30)
            assert oip.ModelInferResponse.FromString(result.response).raw_output_contents == (
                direct.raw_output_contents
            )
    job = client.ended(job_id)
    assert (job.state, job.queries_done, job.failures) == (ENDED, 43, 2)
    assert job.spec.queries == 43


def test_input_by_url_fails_with_the_reason_where_it_cannot_be_read(client: Client) -> None:
    upload = new_id()
    client.upload(upload, [jobs_pb2.Input(name="x", url="file:///etc/passwd"), *inputs(3)])
    results = client.follow(client.submit(upload))
    assert [bool(results[index].error) for index in range(4)] == [True, False, False, False]
    assert "takes no encoded image" in results[0].error


def test_upload_is_used_by_one_job_however_often_it_is_submitted(client: Client) -> None:
    upload = new_id()
    client.upload(upload, inputs(3))
    job_id = client.submit(upload, key=upload)
    assert client.submit(upload, key=upload) == job_id
    with pytest.raises(grpc.RpcError) as second:
        client.submit(upload)
    assert second.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert client.upload(upload, inputs(3)) == 3
    with pytest.raises(grpc.RpcError) as further:
        client.upload(upload, inputs(4))
    assert further.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as unknown:
        client.submit(new_id())
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as gap:
        client.upload(new_id(), inputs(3), first=1)
    assert gap.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_too_many_failures_fail_the_job_and_keep_its_results(client: Client) -> None:
    upload = new_id()
    client.upload(upload, inputs(9, bad=range(9)))
    job_id = client.submit(upload, max_failures=2)
    results = client.follow(job_id)
    job = client.ended(job_id)
    assert job.state == jobs_pb2.JOB_STATE_FAILED
    assert job.reason == "more than 2 inputs failed"
    assert 3 <= job.failures <= len(results) <= 9


def test_job_survives_the_death_of_gateway_and_host_and_is_cancelled_with_its_results(
    fleet: LocalFleet, client: Client
) -> None:
    upload, count = new_id(), 2000
    client.upload(upload, inputs(count))
    job_id = client.submit(upload)
    wait_until_done(client, job_id, 1)
    fleet.kill("gateway")
    fleet.start_gateway()
    before = client.job(job_id).queries_done
    wait_until_done(client, job_id, min(count, before + 1))
    results = client.follow(job_id)
    assert sorted(results) == list(range(count))
    assert not [result for result in results.values() if result.error]
    assert client.ended(job_id).state == ENDED
    later = client.jobs.Results(jobs_pb2.ResultsRequest(job_id=job_id, cursor=1990), timeout=30)
    assert sum(len(batch.results) for batch in later) == 10

    upload = new_id()
    client.upload(upload, inputs(count))
    job_id = client.submit(upload)
    wait_until_done(client, job_id, 1)
    job = client.jobs.Cancel(jobs_pb2.CancelRequest(job_id=job_id), timeout=30)
    assert job.state in (jobs_pb2.JOB_STATE_CANCELLED, ENDED)
    assert len(client.follow(job_id)) >= job.queries_done >= 1


def wait_until_done(client: Client, job_id: str, queries: int) -> None:
    wait_until(lambda: client.job(job_id).queries_done >= queries)
