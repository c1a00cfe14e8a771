"""Inputs of a job as serialised messages of an upload.

The messages are put together from parts, so that the content of a file or array is copied once:
protobuf would copy it three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.client.casting import cast_inputs
from synergai.data.inventory import takes_files
from synergai.data.items import MAX_REASON, Unusable, clean_name
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from synergai.v1 import jobs_pb2
from synergai.wire.arrays import datatype_of, to_raw
from synergai.wire.request_codec import field_prefix
from synergai.wire.validation import UNUSABLE, check_output_names, check_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.data.items import NamedInput
    from synergai.domain import Engine

    Array: TypeAlias = NDArray[Any]
    Part: TypeAlias = bytes | memoryview
    Shapes: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]

_TARGET_BYTES: Final = 2 << 20
"""Messages end with the input that reaches this size."""
_MAX_BYTES: Final = 4 << 20
"""Larger messages have a single input."""
_MAX_INPUTS: Final = 8192
_MAX_HEADERS: Final = 256
"""Shapes whose headers are kept; inputs have few, unless their shapes are dynamic."""
_SMALL_BYTES: Final = 4096
_EMPTY_ELEMENT: Final = bytes(4)
"""Raw contents of an empty text, which stands for a file where only the shape matters."""
_RAW_CONTENTS: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_INPUTS: Final = jobs_pb2.UploadRequest.INPUTS_FIELD_NUMBER
_NAME: Final = jobs_pb2.Input.NAME_FIELD_NUMBER
_REQUEST: Final = jobs_pb2.Input.REQUEST_FIELD_NUMBER


@dataclass(frozen=True, slots=True)
class UnusableInput:
    """An input that was found to be unusable before it was sent."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class UploadMessage:
    """Consecutive inputs.

    Attributes:
        data: the serialised ``UploadRequest``.
        unusable: the inputs that are unusable; the gateway gets the reason in their place.
    """

    first: int
    count: int
    data: bytes
    unusable: tuple[UnusableInput, ...]


class InputEncoder:
    """Encodes inputs of one engine.

    Raises:
        InvalidInput: the engine lacks an output. Otherwise each input would fail for it.
    """

    def __init__(self, engine: Engine, outputs: Sequence[str], limit: int) -> None:
        check_output_names(outputs, engine)
        self._engine = engine
        self._outputs = outputs
        self._limit = limit
        self._headers: dict[Shapes, bytes] = {}
        first = engine.inputs[0]
        self._first = first.name
        # An encoded image is one element; any other BYTES input has the rank that it declares.
        rank = 1 if engine.preprocess else len(first.shape)
        self._file_shapes: Shapes = ((first.name, "BYTES", (1,) * rank),)

    def encode_named(self, item: NamedInput) -> tuple[list[Part], str]:
        """Return the parts of an ``Input``, and why it is unusable, if it is."""
        name, reason = clean_name(item.name).encode(), ""
        try:
            content = self.encode(item.value)
        except InvalidInput as error:
            reason = str(error)[:MAX_REASON]
            content = _unusable_content(reason)
        return [field_prefix(_NAME, len(name)), name, *content], reason

    def encode(self, value: Any) -> list[Part]:
        """Return the parts of an input's content, which is a field of ``Input``."""
        if isinstance(value, Unusable):
            raise InvalidInput(value.reason)
        if isinstance(value, bytes):
            if not takes_files(self._engine):
                raise InvalidInput(f"engine {self._engine.name!r} takes tensors only, not a file")
            content: list[Part] = [len(value).to_bytes(4, "little"), value]
            return self._request(self._file_shapes, [_EMPTY_ELEMENT], [content])
        named = isinstance(value, Mapping) or len(self._engine.inputs) > 1
        arrays = cast_inputs(value if named else {self._first: value}, self._engine)
        shapes = tuple((name, datatype_of(a.dtype), a.shape) for name, a in arrays.items())
        raw = [_raw(array) for array in arrays.values()]
        return self._request(shapes, raw, [[each] for each in raw])

    def _request(
        self, shapes: Shapes, raw: Sequence[Part], contents: Sequence[Sequence[Part]]
    ) -> list[Part]:
        """Return the parts of a request with these shapes and contents.

        The raw contents serve to check the first request of these shapes.
        """
        parts: list[Part] = [self._header(shapes, raw)]
        for content in contents:
            parts.append(field_prefix(_RAW_CONTENTS, sum(map(len, content))))
            parts += content
        size = sum(map(len, parts))
        if size > self._limit:
            raise InvalidInput(f"it has {size:,} bytes; the limit of a message is {self._limit:,}")
        return [field_prefix(_REQUEST, size), *parts]

    def _header(self, shapes: Shapes, raw: Sequence[Part]) -> bytes:
        """Return the request without its raw contents, if the engine accepts these shapes."""
        header = self._headers.get(shapes)
        if header is None:
            request = ModelInferRequest()
            for name, datatype, shape in shapes:
                request.inputs.add(name=name, datatype=datatype, shape=shape)
            for name in self._outputs:
                request.outputs.add(name=name)
            check_request(request, self._engine, raw)
            if len(self._headers) >= _MAX_HEADERS:
                self._headers.clear()
            header = self._headers[shapes] = request.SerializeToString()
        return header


def _raw(array: Array) -> Part:
    """Return the raw contents of an array, without a copy if it is large."""
    if array.nbytes <= _SMALL_BYTES or array.dtype.hasobject:
        return to_raw(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class MessageBuilder:
    """Collects inputs into messages."""

    def __init__(self, encoder: InputEncoder, first: int) -> None:
        self._encoder = encoder
        self._first = first
        self._begin()

    def add(self, item: NamedInput) -> UploadMessage | None:
        """Add an input; return a message if one is complete."""
        named, reason = self._encoder.encode_named(item)
        failure: UnusableInput | None = None
        if reason:
            failure = UnusableInput(self._first + self._count, clean_name(item.name), reason)
        size = sum(map(len, named))
        complete = self.take() if self._size and self._size + size > _MAX_BYTES else None
        self._parts += (field_prefix(_INPUTS, size), *named)
        self._size += size
        self._count += 1
        if failure is not None:
            self._unusable.append(failure)
        if complete is None and (self._size >= _TARGET_BYTES or self._count >= _MAX_INPUTS):
            return self.take()
        return complete

    def take(self) -> UploadMessage | None:
        """Return a message of the inputs that none has yet; None if there are none."""
        if not self._count:
            return None
        head = jobs_pb2.UploadRequest(first=self._first).SerializeToString()
        message = UploadMessage(
            self._first, self._count, b"".join((head, *self._parts)), tuple(self._unusable)
        )
        self._first += self._count
        self._begin()
        return message

    def _begin(self) -> None:
        self._parts: list[Part] = []
        self._unusable: list[UnusableInput] = []
        self._size = self._count = 0


def _unusable_content(reason: str) -> list[Part]:
    request = ModelInferRequest()
    request.parameters[UNUSABLE].string_param = reason
    data = request.SerializeToString()
    return [field_prefix(_REQUEST, len(data)), data]
