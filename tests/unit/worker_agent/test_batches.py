"""Dynamic batching: which queries share a batch, and the effect on their deadlines."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai.domain import BatchTimes, TensorSpec
from synergai.errors import EngineUnusable
from tests.engines import new_engine
from worker_agent.host import batches

LARGE: batches.BatchKey = (("y",), frozenset({("x", np.dtype("f4"), (224, 224))}))
SMALL: batches.BatchKey = (("y",), frozenset({("x", np.dtype("f4"), (8, 8))}))
TIMES = (
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=5)
    .map(lambda times: tuple(np.cumsum(times).tolist()))
    .map(BatchTimes)
)
QUERIES = st.lists(
    st.builds(
        batches.BatchCandidate,
        st.integers(1, 3),
        st.sampled_from([LARGE, LARGE, LARGE, SMALL]),
        st.floats(-1.0, 4.0) | st.just(math.inf),
    ),
    min_size=1,
    max_size=20,
)


def build_batch(
    times: BatchTimes, limit: int, queries: list[batches.BatchCandidate]
) -> list[batches.BatchCandidate]:
    builder = batches.BatchBuilder(times, limit, now=0.0)
    for query in queries:
        if not builder.add(query):
            break
    return queries[: builder.size]


@given(TIMES, QUERIES)
def test_batching_makes_no_query_late(
    times: BatchTimes, queries: list[batches.BatchCandidate]
) -> None:
    batch = build_batch(times, 64, queries)
    if batch:
        seconds = times.seconds(sum(query.rows for query in batch))
        for query in batch:
            assert seconds <= query.due or times.seconds(query.rows) > query.due


def test_batch_is_as_large_as_the_tightest_budget_in_it_allows() -> None:
    times = BatchTimes((1.0, 1.1, 1.2, 1.3))
    ample, tight = batches.BatchCandidate(1, LARGE, math.inf), batches.BatchCandidate(1, LARGE, 1.2)
    assert len(build_batch(times, 8, [ample] * 9)) == 8
    assert len(build_batch(times, 8, [ample, tight, *[ample] * 6])) == 4


def test_late_query_does_not_limit_the_batch() -> None:
    late, ample = batches.BatchCandidate(1, LARGE, 0.5), batches.BatchCandidate(1, LARGE, math.inf)
    assert len(build_batch(BatchTimes((1.0, 1.1)), 8, [late, ample])) == 2


@given(
    st.lists(
        st.integers(1, 4).flatmap(
            lambda rows: st.lists(st.integers(-9, 9), min_size=2 * rows, max_size=2 * rows)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_outputs_of_a_batch_are_those_of_its_queries(values: list[list[int]]) -> None:
    queries = [{"x": np.array(each, np.float32).reshape(-1, 2)} for each in values]
    whole = batches.BatchMemory().join(queries)["x"]
    shares = batches.split_rows(
        [whole + 1, whole.sum(axis=1)], [len(query["x"]) for query in queries]
    )
    for query, (plus, total) in zip(queries, shares, strict=True):
        assert np.array_equal(plus, query["x"] + 1)
        assert np.array_equal(total, query["x"].sum(axis=1))


def test_output_without_a_row_per_query_is_refused() -> None:
    with pytest.raises(EngineUnusable, match="as many rows"):
        batches.split_rows([np.zeros(3)], [1, 1])


def test_batch_key_depends_on_shape_dtype_and_outputs() -> None:
    def of(shape: tuple[int, ...], dtype: str, *outputs: str) -> batches.BatchKey:
        found = batches.batch_key({"x": np.zeros(shape, dtype)}, outputs)
        assert found is not None
        return found[1]

    assert of((1, 2), "f4", "y") == of((3, 2), "f4", "y")
    kinds = {of((1, 2), "f4", "y"), of((1, 3), "f4", "y"), of((1, 2), "f8", "y")}
    assert len(kinds | {of((1, 2), "f4", "z")}) == 4


@pytest.mark.parametrize(("shape", "usable"), [((-1, 3), True), ((1, 3), False), ((), False)])
def test_engine_with_a_fixed_first_dimension_has_no_batches(
    shape: tuple[int, ...], usable: bool
) -> None:
    engine = new_engine(
        "e", (TensorSpec("x", "FP32", shape),), (TensorSpec("y", "FP32", (-1,)),), max_batch=8
    )
    if usable:
        batches.check_batchable(engine)
        return
    with pytest.raises(EngineUnusable, match="first dimension of 'x' is fixed"):
        batches.check_batchable(engine)


def test_joined_batches_use_the_same_memory() -> None:
    memory = batches.BatchMemory()
    first = memory.join([{"x": np.full((2, 3), 1.0)}, {"x": np.full((2, 3), 2.0)}])["x"]
    second = memory.join([{"x": np.full((1, 3), 3.0)}, {"x": np.full((2, 3), 4.0)}])["x"]
    assert np.shares_memory(first, second)
    assert second[:, 0].tolist() == [3.0, 4.0, 4.0]


def test_failed_batch_halves_the_next_ones_and_successes_double_them_again() -> None:
    limit = batches.BatchLimit(16)
    limit.failed(16)
    limit.failed(3)
    assert limit.rows == 1
    for rows in (2, 4, 8, 16, 16):
        for _ in range(batches.GROW_AFTER):
            limit.succeeded()
        assert limit.rows == rows
