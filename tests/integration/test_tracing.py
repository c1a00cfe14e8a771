"""Traces of requests at an OpenTelemetry collector."""

import json
import re
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai.oip import inference_pb2_grpc
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.wire.arrays import build_request
from tests.http1 import fetch, text_of
from tests.waiting import wait_until

ENGINE = "onnx_digits"
IMAGE = {"image": np.zeros((1, 1, 8, 8), np.float32)}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Span] = []

    def Export(  # noqa: N802 - the method of the protocol
        self, request: trace_service_pb2.ExportTraceServiceRequest, _context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.spans += (
            span
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace: str) -> dict[str, Span]:
        """Return the spans of a trace by name, once the request's own is there."""

        def found() -> dict[str, Span]:
            return {each.name: each for each in self.spans if each.trace_id.hex() == trace}

        wait_until(lambda: "infer" in found())
        return found()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    zoo.build(ENGINE, models, lambda _: None)
    return models


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    servicer = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(servicer, server)  # type: ignore[no-untyped-call]  # generated without types
    servicer.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer
    server.stop(None)


@pytest.fixture(scope="module")
def fleet(
    models: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path_factory.mktemp("fleet")) as fleet:
        traces = f"http://127.0.0.1:{collector.port}"
        fleet.start_gateway(
            ["--traces", traces, "--trace-share", "0"],
            prefix=["env", "OTEL_BSP_SCHEDULE_DELAY=100"],
            models=models,
        )
        fleet.wait_for_workers(1)
        yield fleet


def infer(fleet: LocalFleet, traceparent: str, request: ModelInferRequest | None = None) -> Any:
    with grpc.insecure_channel(fleet.address) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = request or build_request(ENGINE, IMAGE)
        message.id = message.id or "mine"
        return stub.ModelInfer(message, metadata=(("traceparent", traceparent),), timeout=30)


def attributes(span: Span) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


def test_sampled_request_has_spans_for_its_queue_and_its_run(
    fleet: LocalFleet, collector: Collector
) -> None:
    trace, parent = "1" * 32, "2" * 16
    infer(fleet, f"00-{trace}-{parent}-01")
    spans = collector.of(trace)
    whole, queue, run = (spans[name] for name in ("infer", "queue", "run"))
    assert whole.parent_span_id.hex() == parent
    assert whole.kind == Span.SPAN_KIND_SERVER
    assert queue.parent_span_id == run.parent_span_id == whole.span_id
    assert whole.start_time_unix_nano == queue.start_time_unix_nano
    assert queue.end_time_unix_nano == run.start_time_unix_nano
    assert run.end_time_unix_nano == whole.end_time_unix_nano
    assert attributes(whole)["synergai.engine"] == ENGINE
    assert attributes(whole)["synergai.request_id"] == "mine"
    assert attributes(run)["synergai.compute_s"] > 0
    assert attributes(run)["synergai.worker"]


def test_request_that_is_not_sampled_or_has_no_valid_context_has_no_spans(
    fleet: LocalFleet, collector: Collector
) -> None:
    before = len(collector.spans)
    for traceparent in (f"00-{'3' * 32}-{'2' * 16}-00", "00-xyz", "", "0" * 100_000):
        infer(fleet, traceparent[:4000])
    infer(fleet, f"00-{'4' * 32}-{'2' * 16}-01")
    collector.of("4" * 32)
    assert {span.trace_id.hex() for span in collector.spans[before:]} == {"4" * 32}


def test_refused_request_has_a_span_with_the_error(fleet: LocalFleet, collector: Collector) -> None:
    with pytest.raises(grpc.RpcError):
        infer(fleet, f"00-{'5' * 32}-{'2' * 16}-01", build_request("none", IMAGE))
    span = collector.of("5" * 32)["infer"]
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert "none" in span.status.message


def test_rest_requests_and_requests_in_streams_are_traced_as_well(
    fleet: LocalFleet, collector: Collector
) -> None:
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}
    body, parent = json.dumps({"inputs": [image]}).encode(), f"00-{'6' * 32}-{'2' * 16}-01"
    path = f"/v2/models/{ENGINE}/infer"
    assert fetch(fleet.http_address, path, body, {"traceparent": parent}).status == 200
    with synergai.SyncClient(fleet.address) as client:
        given = {"traceparent": f"00-{'7' * 32}-{'2' * 16}-01"}
        client.infer(ENGINE, IMAGE, parameters=given)
    assert {*collector.of("6" * 32)} == {*collector.of("7" * 32)} == {"infer", "queue", "run"}


def test_latencies_have_exemplars_for_those_who_ask_for_openmetrics(fleet: LocalFleet) -> None:
    infer(fleet, f"00-{'8' * 32}-{'2' * 16}-01")
    page = fetch(fleet.http_address, "/metrics", headers={"accept": OPENMETRICS})
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    text = page.body.decode()
    [line] = re.findall(r"^synergai_request_run_seconds_bucket.* # .*8{32}.*$", text, re.MULTILINE)
    assert ENGINE in line
    assert " # " not in text_of(fleet.http_address, "/metrics")


def test_collector_that_is_gone_costs_no_request_and_does_not_delay_the_end(
    models: Path, tmp_path: Path
) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        options = ["--traces", "http://127.0.0.1:1", "--trace-share", "1"]
        fleet.start_gateway(options, prefix=["env", "OTEL_BSP_SCHEDULE_DELAY=10"], models=models)
        fleet.wait_for_workers(1)
        for _ in range(50):
            infer(fleet, "")
        assert fleet.gateway is not None
        fleet.gateway.terminate()
        assert fleet.gateway.wait(timeout=20) == 0
        assert "Traceback" not in fleet.log("gateway").read_text()
