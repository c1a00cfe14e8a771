"""Responses with typed contents, for clients that ask for them.

Raw contents are quicker, every client in use reads them, and the 16-bit floats have nothing
else; so they are what a response has unless its request says otherwise.
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
"""Parameter of a request; false asks for typed contents, in KServe's words as in Triton's."""


def wants_typed(request: ModelInferRequest) -> bool:
    """Whether the response is to have typed contents.

    Raises:
        InvalidInput: the parameter is neither true nor false.
    """
    if BINARY_PARAMETER not in request.parameters:
        return False
    parameter = request.parameters[BINARY_PARAMETER]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidInput(f"the parameter {BINARY_PARAMETER!r} must be true or false")
    return not parameter.bool_param


def typed_response(request: ModelInferRequest, version: str, outputs: Described) -> bytes:
    """The serialised ``ModelInferResponse`` to `request`.

    Args:
        request: what is answered.
        version: the engine's.
        outputs: name, datatype and values of each.

    Raises:
        InvalidInput: an output has a datatype that there are no typed contents for.
    """
    response = ModelInferResponse(
        model_name=request.model_name, model_version=version, id=request.id
    )
    for name, datatype, array in outputs:
        field = TYPED_FIELDS.get(datatype)
        if field is None:
            raise InvalidInput(
                f"output {name!r} is {datatype}, which has no typed contents; "
                f"leave {BINARY_PARAMETER!r} out"
            )
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, field).extend(array.reshape(-1).tolist())
    return response.SerializeToString()
