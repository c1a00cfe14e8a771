import numpy as np
import pytest

from synergai.domain import TensorSpec
from synergai.models.definition import WarmUpInput
from synergai.models.samples import Fill, Synthesiser, SyntheticCandidate

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


def test_given_shape_leaves_the_elements_to_the_candidates() -> None:
    synthesiser = Synthesiser([TOKENS], {"tokens": WarmUpInput(shape=(1, 77))})
    found = [
        synthesiser.generate(candidate, 1)[0]["tokens"] for candidate in synthesiser.candidates()
    ]
    assert {array.shape for array in found} == {(1, 77)}
    assert len(found) == len(Fill)
