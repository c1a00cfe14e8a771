"""Responses with typed tensor contents, for clients that request them.

Raw contents are the default: they are faster, all common clients read them, and 16-bit floats have
no typed representation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.validation import TYPED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from synergai.oip.inference_pb2 import ModelInferRequest

    Described: TypeAlias = Iterable[tuple[str, str, NDArray[Any]]]

BINARY_PARAMETER: Final = "binary_data_output"
"""Request parameter; false requests typed contents. The name is that of KServe and Triton."""


def wants_typed(request: ModelInferRequest) -> bool:
    """Return whether the request asks for typed contents."""
    if BINARY_PARAMETER not in request.parameters:
        return False
    parameter = request.parameters[BINARY_PARAMETER]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {BINARY_PARAMETER!r} must be true or false")
    return not parameter.bool_param


def typed_response(request: ModelInferRequest, version: str, outputs: Described) -> bytes:
    """Return the serialised ``ModelInferResponse`` to `request`, with typed contents."""
    response = ModelInferResponse(
        model_name=request.model_name, model_version=version, id=request.id
    )
    for name, datatype, array in outputs:
        field = TYPED_FIELDS.get(datatype)
        if field is None:
            raise InvalidInput(
                f"output {name!r} is {datatype}, which has no typed contents; "
                f"omit the parameter {BINARY_PARAMETER!r}"
            )
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    return response.SerializeToString()
