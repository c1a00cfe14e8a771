"""Conversion of jobs, workers and failed calls from their messages."""

import re

import grpc
import numpy as np
import pytest

from synergai import errors
from synergai.client.fleet import worker_from_proto
from synergai.client.requests import job_spec, request_builder
from synergai.domain import EngineName
from synergai.jobs import JobSpec, JobState
from synergai.runtime.clock import Backoff
from synergai.v1 import fleet_pb2, jobs_pb2
from synergai.wire.converters import job_spec_to_proto, job_status_from_proto
from synergai.wire.status import error_from_call


def a_job(state: JobState, reason: str = "") -> jobs_pb2.Job:
    spec = jobs_pb2.JobSpec(engine="digits", queries=3)
    return jobs_pb2.Job(
        id="j", spec=spec, state=jobs_pb2.JobState.ValueType(state.value), reason=reason
    )


def test_version_may_name_a_variant() -> None:
    spec = job_spec("digits/2.int8", 1, min_accuracy=0.5)
    assert (spec.engine, spec.version, spec.variant) == ("digits", "2", "int8")
    assert spec.min_accuracy == 0.5
    request = request_builder("digits/2.int8", min_accuracy=0.5)({"x": np.zeros(1)})
    assert request.model_version == "2.int8"
    assert request.parameters["synergai_min_accuracy"].double_param == 0.5


@pytest.mark.parametrize("floor", [-0.1, 1.5, float("nan")])
def test_floor_that_is_no_share_is_refused(floor: float) -> None:
    with pytest.raises(errors.InvalidInput, match="min_accuracy"):
        request_builder("digits", min_accuracy=floor)


@pytest.mark.parametrize("max_failures", [None, 0, 5])
def test_specification_over_an_upload_round_trips(max_failures: int | None) -> None:
    spec = JobSpec(
        engine=EngineName("digits"), queries=0, upload_id="an-upload", max_failures=max_failures
    )
    job = jobs_pb2.Job(
        id="j", spec=job_spec_to_proto(spec), state=jobs_pb2.JOB_STATE_QUEUED, failures=2
    )
    status = job_status_from_proto(job)
    assert (status.spec, status.failures) == (spec, 2)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (JobState.FAILED, errors.SynergaiError),
        (JobState.CANCELLED, errors.Cancelled),
        (JobState.REJECTED, errors.Overloaded),
        (JobState.EXPIRED, errors.DeadlineExceeded),
    ],
)
def test_unsuccessful_job_raises_the_matching_error(
    state: JobState, error: type[errors.SynergaiError]
) -> None:
    with pytest.raises(error, match=rf"^job j {state.name.lower()}: why$") as raised:
        job_status_from_proto(a_job(state, "why")).raise_unless_succeeded()
    assert raised.type is error


def test_job_in_an_unknown_state_is_rejected() -> None:
    job = a_job(JobState.QUEUED)
    job.state = jobs_pb2.JobState.ValueType(99)
    with pytest.raises(errors.InvalidInput, match="unknown job state 99"):
        job_status_from_proto(job)


def test_unknown_worker_state_becomes_unknown() -> None:
    state = fleet_pb2.WorkerState.ValueType(99)
    worker = worker_from_proto(fleet_pb2.Worker(id="w", worker_class="c", state=state))
    assert worker.state.name == "UNKNOWN"


@pytest.mark.parametrize(
    ("details", "message"),
    [
        (
            (
                "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
                "Failed to connect to remote host: Connection refused"
            ),
            "cannot connect to gate:1 (connection refused); is it running?",
        ),
        (
            (
                "errors resolving gate:1: [field:hostname lookup error:address lookup failed for "
                "gate:1: Domain name not found]"
            ),
            "cannot connect to gate:1 (domain name not found); is it running?",
        ),
        (
            (
                "failed to connect to all addresses; last error: INTERNAL: ipv4:127.0.0.1:1: "
                "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got 80)"
            ),
            "the server at gate:1 does not speak gRPC",
        ),
        ("Socket closed", "the connection to gate:1 was lost"),
        ("the gateway is going", "the gateway is going"),
    ],
)
def test_transport_failure_names_the_gateway(details: str, message: str) -> None:
    error = error_from_call("gate:1", grpc.StatusCode.UNAVAILABLE, details)
    assert isinstance(error, errors.Unavailable)
    assert str(error) == message


def test_a_request_that_is_too_large_is_told_its_size() -> None:
    details = "CLIENT: Sent message larger than max (76800041 vs. 67108864)"
    error = error_from_call("gate:1", grpc.StatusCode.RESOURCE_EXHAUSTED, details)
    assert isinstance(error, errors.InvalidInput)
    assert str(error).startswith("the request has 76,800,041 bytes, and a message has at most 67,1")


def test_unimplemented_call_suggests_that_the_server_is_no_gateway() -> None:
    error = error_from_call("gate:1", grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    assert isinstance(error, errors.NotSupported)
    assert str(error) == "gate:1 does not implement this call; is it a SynergAI gateway?"


REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
SSL = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("details", "text"),
    [
        (f"{SSL}CERTIFICATE_VERIFY_FAILED: unable to get issuer: OK", "not signed by"),
        (f"{SSL}WRONG_VERSION_NUMBER: Invalid context: OK", "give no authority"),
        ("UNAUTHENTICATED: Hostname Verification Check failed.", "for another host"),
        ("Handshake read failed (Socket closed)", "without TLS, give no authority"),
        ("Socket closed", r"does it need TLS \(SYNERGAI_TLS_CA\)\?"),
        ("Secure read failed (Socket closed)", "SYNERGAI_TLS_CERT and SYNERGAI_TLS_KEY"),
    ],
)
def test_tls_failure_names_its_cause(details: str, text: str) -> None:
    error = error_from_call("gate:1", grpc.StatusCode.UNAVAILABLE, REFUSED + details)
    assert isinstance(error, errors.Unavailable)
    assert re.search(rf"gate:1.*{text}", str(error))


def test_backoff_doubles_up_to_its_bound_with_jitter() -> None:
    delays = Backoff(initial_s=1.0, max_s=4.0).delays()
    for bound in (1.0, 2.0, 4.0, 4.0):
        assert bound / 2 <= next(delays) <= bound
