"""Sample sets of engines, and inputs that are made up for those without one."""

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from synergai.domain import EngineName, TensorSpec
from synergai.errors import InvalidInput
from synergai.models import samples as samples_module
from synergai.models.directory import EngineDefinition
from synergai.models.samples import (
    Fill,
    Synthesiser,
    SyntheticCandidate,
    load_samples,
    random_samples,
)
from synergai.wire.validation import DATATYPES

X = TensorSpec("x:0", "FP32", (-1, 2))


def saved(tmp_path: Path, **arrays: ArrayLike) -> EngineDefinition:
    path = tmp_path / "samples.npz"
    named = {name.replace("_0", ":0"): np.asarray(array) for name, array in arrays.items()}
    np.savez(path, allow_pickle=True, **named)
    return EngineDefinition(name=EngineName("e"), file=tmp_path / "m.onnx", samples=path)


def test_array_of_equal_rank_is_split_into_batches_of_one(tmp_path: Path) -> None:
    definition = saved(tmp_path, x_0=np.arange(6, dtype=np.float32).reshape(3, 2))

    found = load_samples(definition, [X])

    assert len(found) == 3
    assert found.inputs[1]["x:0"].tolist() == [[2.0, 3.0]]
    assert found.labels is None


@pytest.mark.parametrize(
    ("array", "spec"),
    [
        (np.zeros((3, 5, 2), np.float32), TensorSpec("x:0", "FP32", (5, 2))),
        (np.arange(3), TensorSpec("x:0", "INT64", ())),
    ],
)
def test_array_of_higher_rank_is_split_along_the_leading_axis(
    tmp_path: Path, array: NDArray[np.generic], spec: TensorSpec
) -> None:
    found = load_samples(saved(tmp_path, x_0=array), [spec])

    assert [each["x:0"].shape for each in found.inputs] == [spec.shape] * 3
    assert np.array_equal(found.inputs[2]["x:0"], array[2])


def test_labels_are_loaded_with_the_samples(tmp_path: Path) -> None:
    definition = saved(
        tmp_path, x_0=np.zeros((3, 2), np.float32), labels=np.array([4, 5, 6], np.uint8)
    )

    labels = load_samples(definition, [X]).labels

    assert labels is not None
    assert labels.dtype == np.int64
    assert labels.tolist() == [4, 5, 6]


def test_strings_are_encoded_as_utf_8(tmp_path: Path) -> None:
    definition = saved(tmp_path, x_0=np.array([["ä", "b"]]))

    found = load_samples(definition, [TensorSpec("x:0", "BYTES", (-1, 2))])

    assert found.inputs[0]["x:0"].tolist() == [["ä".encode(), b"b"]]


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"y": np.zeros((3, 2), np.float32)}, "has arrays for y, but the engine takes x:0"),
        ({"x_0": np.zeros((3, 2), np.float64)}, "is float64, but the engine takes float32"),
        ({"x_0": np.zeros((3, 4), np.float32)}, r"have the shape \[1, 4\]"),
        ({"x_0": np.zeros(3, np.float32)}, r"has the shape \[3\]"),
        ({"x_0": np.zeros((0, 2), np.float32)}, "number of samples"),
        ({"x_0": np.zeros((3, 2), np.float32), "labels": np.zeros(2, int)}, "3 integers"),
        ({"x_0": np.zeros((3, 2), np.float32), "labels": np.zeros(3)}, "3 integers"),
        ({"x_0": np.array([[None, None]])}, "not an .npz archive of plain arrays"),
    ],
)
def test_samples_that_do_not_match_the_inputs_are_rejected(
    tmp_path: Path, arrays: dict[str, ArrayLike], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        load_samples(saved(tmp_path, **arrays), [X])


def test_inputs_must_have_the_same_number_of_samples(tmp_path: Path) -> None:
    definition = saved(tmp_path, x_0=np.zeros((3, 2), np.float32), y=np.zeros((4, 2), np.float32))

    with pytest.raises(InvalidInput, match="the same number of samples"):
        load_samples(definition, [X, TensorSpec("y", "FP32", (-1, 2))])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY"])
def test_file_that_is_not_an_archive_is_rejected(tmp_path: Path, content: bytes) -> None:
    definition = saved(tmp_path, x_0=np.zeros(1))
    assert definition.samples is not None
    definition.samples.write_bytes(content)

    with pytest.raises(InvalidInput, match=r"is not an \.npz archive"):
        load_samples(definition, [X])


def npy(header: str) -> bytes:
    """Return an archive member that begins like an array."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


@pytest.mark.parametrize(
    ("member", "content", "complaint"),
    [
        ("x:0.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2"), "plain arrays"),
        (
            "x:0.npy",
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000000000,)}"),
            "plain arrays",
        ),
        ("x:0", b"a text", "'x:0' is not an array"),
    ],
)
def test_archive_member_that_is_not_an_array_is_rejected(
    tmp_path: Path, member: str, content: bytes, complaint: str
) -> None:
    definition = saved(tmp_path, x_0=np.zeros(1))
    assert definition.samples is not None
    with zipfile.ZipFile(definition.samples, "w") as archive:
        archive.writestr(member, content)

    with pytest.raises(InvalidInput, match=complaint):
        load_samples(definition, [X])


@given(place=st.integers(0, 10_000), byte=st.binary(min_size=1, max_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_corrupt_archive_is_read_or_rejected(tmp_path: Path, place: int, byte: bytes) -> None:
    path = tmp_path / "samples.npz"
    np.savez_compressed(path, x=np.arange(20, dtype=np.float32).reshape(10, 2))
    content = path.read_bytes()
    place %= len(content)
    path.write_bytes(content[:place] + byte + content[place + 1 :])
    definition = EngineDefinition(name=EngineName("e"), file=tmp_path / "m.onnx", samples=path)

    with suppress(InvalidInput):
        assert load_samples(definition, [TensorSpec("x", "FP32", (-1, 2))])


def test_oversized_archive_is_rejected_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = saved(tmp_path, x_0=np.zeros((3, 2), np.float32))
    monkeypatch.setattr(samples_module, "MAX_SAMPLES_BYTES", 100)
    monkeypatch.delattr(np, "load")

    with pytest.raises(InvalidInput, match="the limit is 100"):
        load_samples(definition, [X])


@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_random_samples_have_the_inputs_dtype_and_shape_and_are_reproducible(datatype: str) -> None:
    spec = TensorSpec("x", datatype, (-1, 3, -1))

    first, second = random_samples([spec]), random_samples([spec])

    assert len(first) == 8
    for one, other in zip(first.inputs, second.inputs, strict=True):
        assert one["x"].shape == (1, 3, 1)
        assert one["x"].dtype == other["x"].dtype
        assert (one["x"] == other["x"]).all()


def test_random_samples_of_unknown_dtypes_or_excessive_size_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="unknown"):
        random_samples([TensorSpec("x", "unknown", (1,))])
    with pytest.raises(InvalidInput, match="too large"):
        random_samples([TensorSpec("x", "FP32", (1 << 40, 1 << 40))])


def test_engine_without_a_sample_set_gets_random_samples(tmp_path: Path) -> None:
    definition = EngineDefinition(name=EngineName("e"), file=tmp_path / "m.onnx")

    found = load_samples(definition, [X])

    assert len(found) == 8
    assert len({array.tobytes() for sample in found.inputs for array in sample.values()}) == 8


TOKENS = TensorSpec("tokens", "INT64", (-1, -1))
FIXED = TensorSpec("x", "FP32", (1, 3))


def shapes(*inputs: TensorSpec) -> list[tuple[int, ...]]:
    synthesiser = Synthesiser(inputs)
    found = [
        array.shape
        for candidate in synthesiser.candidates()
        for array in synthesiser.generate(candidate, 1)[0].values()
    ]
    return list(dict.fromkeys(found))


def test_first_candidate_is_the_smallest_one_with_random_elements() -> None:
    assert next(Synthesiser([TOKENS]).candidates()) == SyntheticCandidate(1, 1, Fill.RANDOM)


def test_dynamic_sizes_grow_for_a_batch_of_one_first() -> None:
    assert shapes(TOKENS)[:5] == [(1, 1), (1, 2), (2, 2), (1, 3), (3, 3)]
    assert (1, 224) in shapes(TOKENS)


def test_input_of_fixed_shape_varies_in_its_elements_only() -> None:
    assert shapes(FIXED) == [(1, 3)]
    assert [candidate.fill for candidate in Synthesiser([FIXED]).candidates()] == list(Fill)


def test_strings_are_numbers_in_some_candidates() -> None:
    synthesiser = Synthesiser([TensorSpec("text", "BYTES", (1,))])
    texts = [
        synthesiser.generate(candidate, 1)[0]["text"].tolist()
        for candidate in synthesiser.candidates()
    ]
    assert texts == [[b"sample"], [b"1"], [b"0"]]


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "INT64", "FP16", "FP64"])
def test_elements_are_ones_and_zeros(datatype: str) -> None:
    synthesiser = Synthesiser([TensorSpec("x", datatype, (2,))])
    for fill, number in ((Fill.ONES, 1), (Fill.ZEROS, 0)):
        (sample,) = synthesiser.generate(SyntheticCandidate(fill=fill), 1)
        assert (sample["x"] == number).all()


def test_one_in_bfloat16_is_the_upper_half_of_the_float() -> None:
    (sample,) = Synthesiser([TensorSpec("x", "BF16", (1,))]).generate(
        SyntheticCandidate(fill=Fill.ONES), 1
    )
    assert sample["x"].tolist() == [np.float32(1).view(np.uint32) >> 16]


def test_candidates_are_of_limited_size() -> None:
    wide = TensorSpec("x", "FP32", (-1, -1, -1, -1))
    sizes = {candidate.size for candidate in Synthesiser([wide]).candidates()}
    assert {1, 2, 32, 64} <= sizes
    largest = max(
        np.prod(shape, dtype=np.float64) for shape in shapes(TensorSpec("x", "INT8", (-1,) * 4))
    )
    assert largest <= 64 << 20


def test_input_that_is_too_large_has_no_candidate() -> None:
    assert not list(Synthesiser([TensorSpec("x", "FP32", (1 << 40,))]).candidates())
