"""Weights of PyTorch's legacy file format, read without PyTorch.

The file is a sequence of pickles: a magic number, the version, sizes of types, the tensors by name,
and the keys of their storages; the storages follow as raw numbers. A pickle can name any function
of Python, so only the few that such a file needs are allowed, and none of them runs code of it.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
_DTYPES: Final = {"FloatStorage": "<f4", "LongStorage": "<i8"}
_MAX_VALUES: Final = 1 << 28


class _Storage(NamedTuple):
    dtype: str
    key: str


class _Tensor(NamedTuple):
    """A tensor whose storage has not been read."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _make_tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


class _Unpickler(pickle.Unpickler):
    """Unpickles names, numbers and descriptions of tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for an allowed function or class."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _make_tensor
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that an id describes: kind, type, key, device, size."""
        _, dtype, key, *_ = pid
        return _Storage(dtype, key)


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file by name.

    Raises:
        InvalidInput: it is not a file of weights, or it is damaged.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = _load(file), _load(file)
            _load(file)
            tensors: dict[str, _Tensor] = _load(file)
            keys: list[str] = _load(file)
            dtypes = {each.storage.key: each.storage.dtype for each in tensors.values()}
            storages = {key: _read_storage(file, dtypes[key]) for key in keys}
        found = {name: _view(each, storages) for name, each in tensors.items()}
    except (InvalidInput, OSError):
        raise
    except Exception as error:  # pickles of other files may fail in any way
        raise InvalidInput(f"{path.name} cannot be read as weights: {error}") from error
    if head != (_MAGIC, _PROTOCOL):
        raise InvalidInput(f"{path.name} is not a file of PyTorch's legacy format")
    return found


def _load(file: IO[bytes]) -> Any:
    return _Unpickler(file).load()


def _read_storage(file: IO[bytes], dtype: str) -> NDArray[Any]:
    count = int.from_bytes(file.read(8), "little")
    if count > _MAX_VALUES:
        raise InvalidInput("a tensor of the file is too large")
    values = np.frombuffer(file.read(count * np.dtype(dtype).itemsize), dtype)
    if len(values) != count:
        raise InvalidInput("the file of weights is cut off")
    return values


def _view(tensor: _Tensor, storages: dict[str, NDArray[Any]]) -> NDArray[Any]:
    values = storages[tensor.storage.key][tensor.offset :]
    steps = zip(tensor.shape, tensor.strides, strict=True)
    if tensor.offset < 0 or any(size < 1 or step < 0 for size, step in steps):
        raise InvalidInput("the file of weights has a tensor of an impossible shape")
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if last >= len(values):
        raise InvalidInput("the file of weights has a tensor beyond its values")
    strides = tuple(step * values.itemsize for step in tensor.strides)
    view = np.lib.stride_tricks.as_strided(values, tensor.shape, strides, writeable=False)
    return np.ascontiguousarray(view)
