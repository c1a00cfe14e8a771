"""Domain types round-trip through protobuf, and invalid messages are rejected."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai import domain
from synergai.errors import InvalidInput
from synergai.jobs import JobSpec
from synergai.names import split_version, versioned
from synergai.profiles.dictionary import ProfileEntry
from synergai.v1 import common_pb2
from synergai.wire import converters
from synergai.wire.validation import DATATYPES
from tests.engines import new_engine

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
VARIANT_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
VERSIONS = st.integers(1, 10**18 - 1).map(str)
ENGINE_NAMES = st.builds(versioned, NAMES, VERSIONS)
CONFIGURATIONS = st.builds(
    domain.Configuration,
    st.integers(0, domain.MAX_THREADS),
    *[st.just("") | NAMES] * 2,
    st.just("") | VARIANT_NAMES,
)
ACCURACIES = st.floats(0, 1)
VARIANTS = st.builds(
    domain.Variant,
    name=VARIANT_NAMES,
    digest=st.text(max_size=64),
    accuracy=ACCURACIES,
    origin=st.sampled_from(domain.Origin),
)
SPECS = st.builds(
    domain.TensorSpec,
    st.text(min_size=1, max_size=20),
    st.sampled_from(sorted(DATATYPES)),
    st.lists(st.integers(-1, 2**40), max_size=5).map(tuple),
)
TENSORS = st.lists(SPECS, min_size=1, max_size=3, unique_by=lambda spec: spec.name).map(tuple)
ENGINES = ENGINE_NAMES.flatmap(
    lambda name: st.builds(
        domain.Engine,
        name=st.just(name),
        version=st.just(split_version(name)[1]),
        backend=NAMES,
        inputs=TENSORS,
        outputs=TENSORS,
        digest=st.text(max_size=64),
        samples=st.integers(0, 2**32 - 1),
        fault=st.text(max_size=50),
        unverified=st.text(max_size=50),
        preprocess=st.just("") | NAMES,
        postprocess=st.just("") | NAMES,
        max_batch=st.integers(1, 256),
        variants=st.lists(VARIANTS, max_size=3, unique_by=lambda each: each.name).map(tuple),
        unused_variants=st.lists(
            st.builds(domain.UnusedVariant, VARIANT_NAMES, st.text(max_size=50)), max_size=3
        ).map(tuple),
    )
)
FIGURES = st.floats(0, 1e9)
WORDS = st.text(max_size=20).filter(str.isprintable)
ENTRIES = st.builds(
    ProfileEntry,
    engine=ENGINE_NAMES,
    worker_class=NAMES.map(domain.WorkerClass),
    configuration=CONFIGURATIONS,
    qps=st.floats(1e-9, 1e9),
    queries=st.integers(0, 2**53),
    batch_qps=st.lists(st.floats(1e-9, 1e9), max_size=6).map(tuple),
    accuracy=ACCURACIES,
    accuracy_samples=st.integers(1, 2**53),
    **dict.fromkeys(("label", "measured_at"), WORDS),
    **dict.fromkeys(("model_load_s", "latency_p50_s", "latency_p99_s", "watts"), FIGURES),
)


@given(st.builds(domain.Session, ENGINE_NAMES, CONFIGURATIONS))
def test_session_round_trips(session: domain.Session) -> None:
    assert converters.session_from_proto(converters.session_to_proto(session)) == session


@pytest.mark.parametrize(
    "name", ["echo/0", "echo/01", "echo/", "echo/two", "/2", "a/2/3", "echo/-1"]
)
def test_engine_with_an_invalid_version_is_rejected(name: str) -> None:
    with pytest.raises(InvalidInput):
        converters.engine_from_proto(common_pb2.Engine(name=name, fault="broken"))


@given(ENGINES)
def test_engine_round_trips(engine: domain.Engine) -> None:
    assert converters.engine_from_proto(converters.engine_to_proto(engine)) == engine


@given(
    st.builds(
        JobSpec,
        engine=NAMES,
        version=st.just("") | VERSIONS,
        variant=st.just("") | VARIANT_NAMES,
        min_accuracy=ACCURACIES,
    )
)
def test_job_specification_round_trips(spec: JobSpec) -> None:
    assert converters.job_spec_from_proto(converters.job_spec_to_proto(spec)) == spec


@given(ENTRIES)
def test_profile_entry_round_trips(entry: ProfileEntry) -> None:
    assert converters.profile_entry_from_proto(converters.profile_entry_to_proto(entry)) == entry


def spec(**fields: object) -> common_pb2.TensorSpec:
    return common_pb2.TensorSpec(**{"name": "x", "datatype": "FP32", "shape": [1], **fields})  # type: ignore[arg-type]  # any field may be replaced


def variant(**fields: object) -> common_pb2.Variant:
    return common_pb2.Variant(**{"name": "int8", "origin": "measured", **fields})  # type: ignore[arg-type]  # as above


def engine(**fields: object) -> common_pb2.Engine:
    usual = {"name": "digits", "inputs": [spec()], "outputs": [spec()]}
    return common_pb2.Engine(**{**usual, **fields})  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [
        (engine(name="../etc"), "not a valid engine name"),
        (engine(name=""), "not a valid engine name"),
        (engine(inputs=[]), "no inputs or no outputs"),
        (engine(inputs=[spec(), spec()]), "two tensors of the same name"),
        (engine(inputs=[spec(datatype="FP12")]), "unknown datatype 'FP12'"),
        (engine(inputs=[spec(shape=[-3])]), "invalid shape"),
        (engine(inputs=[spec(shape=[1] * 65)]), "invalid shape"),
        (engine(inputs=[spec(name="")]), "has no name"),
        (engine(fault="x" * 5000), "longer than"),
        (engine(preprocess="a b"), "not a valid pre-processing"),
        (engine(max_batch=257), "max_batch 257; the limit is 256"),
        (engine(postprocess="\n"), "not a valid post-processing"),
        (engine(variants=[variant(name="a b")]), "not a valid variant name"),
        (engine(variants=[variant(accuracy=1.5)]), "accuracy of variant 'int8' must be from 0 to"),
        (engine(variants=[variant(accuracy=math.nan)]), "must be from 0 to 1, not nan"),
        (engine(variants=[variant(origin="dreamt")]), "unknown origin"),
        (engine(variants=[variant(digest="x" * 5000)]), "longer than"),
        (engine(variants=[variant(), variant()]), "two variants of the same name"),
        (engine(variants=[variant(name=f"v{i}") for i in range(33)]), "more than 32 variants"),
    ],
)
def test_invalid_engine_is_rejected(nonsense: common_pb2.Engine, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        converters.engine_from_proto(nonsense)


@pytest.mark.parametrize("seconds", [[-1.0], [math.nan], [math.inf], [1.0] * 10])
def test_invalid_batch_times_are_rejected(seconds: list[float]) -> None:
    with pytest.raises(InvalidInput, match="batch times"):
        converters.batch_times_from_proto(seconds)


def test_long_fault_is_truncated_to_the_accepted_length() -> None:
    faulty = new_engine("e", fault="x" * 5000)

    assert set(converters.engine_from_proto(converters.engine_to_proto(faulty)).fault) == {"x"}


@pytest.mark.parametrize("query_s", [math.nan, math.inf, -1.0])
def test_implausible_query_times_are_unknown(query_s: float) -> None:
    message = common_pb2.Engine(name="e", fault="broken", query_s=query_s)
    assert converters.engine_from_proto(message).query_s == 0.0


@pytest.mark.parametrize(
    "nonsense",
    [
        common_pb2.Configuration(threads=5000),
        common_pb2.Configuration(power_mode="a b"),
        common_pb2.Configuration(execution_provider="/"),
        common_pb2.Configuration(variant="a,b"),
    ],
)
def test_invalid_configuration_is_rejected(nonsense: common_pb2.Configuration) -> None:
    with pytest.raises(InvalidInput):
        converters.configuration_from_proto(nonsense)


@pytest.mark.parametrize(
    "nonsense",
    [
        common_pb2.ProfileEntry(queries=2**64 - 1),
        common_pb2.ProfileEntry(qps=math.nan),
        common_pb2.ProfileEntry(label="\x1b[31m"),
    ],
)
def test_entry_that_cannot_be_stored_or_displayed_is_rejected(
    nonsense: common_pb2.ProfileEntry,
) -> None:
    message = common_pb2.ProfileEntry(engine="digits", worker_class="x86", qps=1.0)
    message.MergeFrom(nonsense)
    with pytest.raises(InvalidInput):
        converters.profile_entry_from_proto(message)


def test_engine_with_more_unused_variants_than_peers_accept_is_shortened() -> None:
    # A worker's own, and those whose files differ from other workers'.
    unused = tuple(
        domain.UnusedVariant(f"v{number}", "unusable") for number in range(2 * domain.MAX_VARIANTS)
    )
    engine = new_engine("e", fault="broken", unused_variants=unused)
    received = converters.engine_from_proto(converters.engine_to_proto(engine))
    assert received.unused_variants == unused[: domain.MAX_VARIANTS]
