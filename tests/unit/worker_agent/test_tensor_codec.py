"""Round trip of arrays through responses, raw and typed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from synergai.wire.arrays import read_outputs
from worker_agent.host.query_codec import write_response

DTYPES = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TENSORS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
TEXTS = hnp.arrays(object, SHAPES, elements=st.binary(max_size=5))


def request(*, binary: bool | None) -> ModelInferRequest:
    parameters = {}
    if binary is not None:
        parameters["binary_data_output"] = InferParameter(bool_param=binary)
    return ModelInferRequest(model_name="m", id="7", parameters=parameters)


def response(to: ModelInferRequest, outputs: dict[str, NDArray[np.generic]]) -> ModelInferResponse:
    return ModelInferResponse.FromString(b"".join(write_response(to, "1", outputs)))


@given(st.dictionaries(st.sampled_from("abc"), TENSORS | TEXTS, min_size=1), st.booleans())
def test_outputs_round_trip_in_the_requested_form(
    outputs: dict[str, NDArray[np.generic]], binary: bool
) -> None:
    got = response(request(binary=binary), outputs)
    assert (got.model_name, got.model_version, got.id) == ("m", "1", "7")
    assert len(got.raw_output_contents) == (len(outputs) if binary else 0)
    arrived = read_outputs(got)
    assert arrived.keys() == outputs.keys()
    for name, array in outputs.items():
        assert arrived[name].dtype == array.dtype
        np.testing.assert_array_equal(arrived[name], array)


def test_datatype_without_typed_contents_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'y' is FP16"):
        write_response(request(binary=False), "1", {"y": np.zeros(2, np.float16)})


def test_binary_parameter_must_be_a_bool() -> None:
    asking = request(binary=None)
    asking.parameters["binary_data_output"].int64_param = 0
    with pytest.raises(InvalidInput, match="true or false"):
        write_response(asking, "1", {"y": np.zeros(2, np.float32)})
