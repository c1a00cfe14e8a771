"""Reading of requests and building of responses, for fake servers."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from synergai.oip import inference_pb2 as oip
from synergai.wire import arrays


def read_inputs(request: oip.ModelInferRequest) -> dict[str, NDArray[np.generic]]:
    return arrays.read_tensors(request.inputs, request.raw_input_contents)


def build_response(
    engine: str, outputs: Mapping[str, ArrayLike], *, version: str = "", request_id: str = ""
) -> oip.ModelInferResponse:
    response = oip.ModelInferResponse(model_name=engine, model_version=version, id=request_id)
    for name, value in outputs.items():
        array = np.asarray(value)
        datatype = arrays.datatype_of(array.dtype)
        response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        response.raw_output_contents.append(arrays.to_raw(array))
    return response
