"""Engine statistics for requests of every outcome."""

import pytest
from msgspec.structs import replace

from gateway.calls.servicers.engines import engine_config, engine_statistics
from gateway.monitoring.counts import EngineStatistics
from synergai.domain import Engine
from synergai.errors import Overloaded
from synergai.oip import inference_pb2 as oip
from synergai.wire.agent_messages import ProtocolViolation
from tests.unit.gateway.conftest import GatewayHarness


def statistics(harness: GatewayHarness) -> EngineStatistics:
    found: EngineStatistics = harness.metrics.engines["echo"].statistics
    return found


async def test_successful_request_is_counted_with_its_times(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    request = harness.begin_request()
    (assignment,) = harness.assignments(worker)
    harness.complete(
        worker, assignment, [oip.ModelInferResponse().SerializeToString()], done=1, compute_s=1e-9
    )
    assert request.result.done()
    found = statistics(harness)
    assert found.success.count == found.queue.count == found.transfer.count == 1
    assert found.compute.count == 1
    parts = found.queue.seconds + found.transfer.seconds + found.compute.seconds
    assert found.success.seconds == pytest.approx(parts)
    assert found.last_query_at is not None


async def test_reported_compute_time_is_limited_by_elapsed_time(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    harness.begin_request()
    (assignment,) = harness.assignments(worker)
    harness.complete(worker, assignment, [b""], done=1, compute_s=1e6)
    assert statistics(harness).transfer.seconds == 0
    assert statistics(harness).success.seconds < 1e3


async def test_rejected_expired_cancelled_and_failed_requests_are_counted_separately(
    harness: GatewayHarness,
) -> None:
    harness.add_worker()
    harness.begin_request().abandon()
    with pytest.raises(Exception, match="deadline"):
        harness.begin_request(budget_s=0.0)
    with pytest.raises(Exception, match="needs 4 bytes"):
        harness.begin_request(raw_input_contents=[b"x"])
    for _ in range(4):
        harness.begin_request()
    with pytest.raises(Overloaded):
        harness.begin_request()
    found = statistics(harness)
    counts = [d.count for d in (found.cancelled, found.expired, found.fail, found.rejected)]
    assert counts == [1, 1, 1, 1]
    assert found.success.count == 0


async def test_statistics_convert_to_tritons_message(
    harness: GatewayHarness, engine: Engine
) -> None:
    found = statistics(harness)
    found.record_compute(4, 2.0, harness.clock.now())
    found.record_success(0.25, 0.5, 1.0)
    found.cancelled.add(3.0)
    message = engine_statistics(engine, found, harness.clock)
    assert (message.inference_count, message.execution_count) == (4, 4)
    assert message.last_inference > 1.6e12
    stats = message.inference_stats
    assert (stats.success.count, stats.success.ns) == (1, 1_750_000_000)
    assert (stats.queue.ns, stats.compute_input.ns) == (250_000_000, 500_000_000)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (4, 2_000_000_000)
    assert stats.cancelled.count == message.response_stats["0"].cancel.count == 1
    assert [batch.batch_size for batch in message.batch_stats] == [1]


async def test_batch_counts_as_one_execution_of_its_size(
    harness: GatewayHarness, engine: Engine
) -> None:
    found = statistics(harness)
    found.record_compute(3, 0.5, 0.0)
    for _ in range(8):
        found.record_compute(1, 0.25, 0.0, batch=4)
    message = engine_statistics(engine, found, harness.clock)
    assert (message.inference_count, message.execution_count) == (11, 5)
    assert message.inference_stats.compute_infer.ns == 2_500_000_000
    sizes = {each.batch_size: each.compute_infer for each in message.batch_stats}
    assert (sizes[1].count, sizes[1].ns) == (3, 500_000_000)
    assert (sizes[4].count, sizes[4].ns) == (2, 500_000_000)


async def test_batch_beyond_the_limit_is_a_protocol_violation(harness: GatewayHarness) -> None:
    worker = harness.add_worker()
    harness.begin_request()
    (assignment,) = harness.assignments(worker)
    with pytest.raises(ProtocolViolation, match="batch of 2 queries"):
        harness.complete(worker, assignment, [b""], done=1, batch=2)


def test_configuration_of_a_batching_engine_excludes_the_batch_dimension(engine: Engine) -> None:
    config = engine_config(replace(engine, max_batch=8))
    assert config.max_batch_size == 8
    assert config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in config.input] == [[]]
    assert [list(tensor.dims) for tensor in config.output] == [[]]


def test_configuration_without_batching_has_complete_shapes(engine: Engine) -> None:
    config = engine_config(engine)
    assert config.max_batch_size == 0
    (tensor,) = config.input
    assert (tensor.name, tensor.data_type, list(tensor.dims)) == ("x", 11, [-1])
    assert list(config.version_policy.specific.versions) == [1]
