"""Inputs by URL: read by the worker, from below the allowed roots only."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import Engine, TensorSpec

_FILE: Final = "file"


class InputReader:
    """Reader of inputs below directories and URLs, which blocks; without any, it reads nothing."""

    def __init__(self, roots: Sequence[str], max_bytes: int) -> None:
        self._directories = [
            os.path.realpath(unquote(urlsplit(root).path) if "://" in root else root)
            for root in roots
            if "://" not in root or urlsplit(root).scheme == _FILE
        ]
        self._prefixes = [
            root.rstrip("/") + "/"
            for root in roots
            if "://" in root and urlsplit(root).scheme != _FILE
        ]
        self._max_bytes = max_bytes

    def read(self, url: str, engine: Engine) -> bytes:
        """Return the serialised request with the content of a URL as its one value."""
        spec = _bytes_input(engine)
        try:
            scheme = urlsplit(url).scheme
            data = self._read_file(url) if scheme == _FILE else self._read_other(url, scheme)
        except InvalidInput:
            raise
        except ValueError as error:  # such as a NUL in a path
            raise InvalidInput(f"{url!r} cannot be read: {error}") from None
        request = ModelInferRequest(
            inputs=[
                ModelInferRequest.InferInputTensor(
                    name=spec.name, datatype="BYTES", shape=_shape(spec)
                )
            ],
            raw_input_contents=[len(data).to_bytes(4, "little") + data],
        )
        return request.SerializeToString()

    def _read_file(self, url: str) -> bytes:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise InvalidInput(f"{url!r} is on another machine")
        path = os.path.realpath(unquote(parts.path))
        if not self._allows(path):
            raise InvalidInput(
                f"{url!r} is not below a directory that this worker may read (--input-roots)"
            )
        try:
            # The resolved path has no links. One that takes its place later is seen below.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            raise InvalidInput(f"{url!r} cannot be read: {error.strerror}") from None
        try:
            if not self._allows(os.path.realpath(f"/proc/self/fd/{descriptor}")):
                raise InvalidInput(f"{url!r} was moved while it was opened")
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidInput(f"{url!r} is not a file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return self._checked(url, file.read(self._max_bytes + 1))
        except OSError as error:
            raise InvalidInput(f"{url!r} cannot be read: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def _allows(self, path: str) -> bool:
        return any(os.path.commonpath((root, path)) == root for root in self._directories)

    def _read_other(self, url: str, scheme: str) -> bytes:
        if not self._allows_url(url):
            raise InvalidInput(
                f"{url!r} is not below a URL that this worker may read (--input-roots)"
            )
        if scheme in ("http", "https"):
            # Imported here to keep HTTP out of agents without such inputs.
            from worker_agent.hub_client.http_inputs import HttpInputs

            return self._checked(url, HttpInputs(self._allows_url).read(url, self._max_bytes + 1))
        try:
            import fsspec  # type: ignore[import-untyped, import-not-found, unused-ignore]  # optional
        except ModuleNotFoundError:
            raise InvalidInput(
                f"this worker cannot read {scheme!r} URLs; install fsspec on it, and its package "
                "for them"
            ) from None
        try:
            with fsspec.open(url, "rb") as file:
                return self._checked(url, file.read(self._max_bytes + 1))
        except InvalidInput:
            raise
        except Exception as error:  # noqa: BLE001 - each implementation has its own exceptions
            raise InvalidInput(f"{url!r} cannot be read: {error}") from None

    def _allows_url(self, url: str) -> bool:
        # fsspec takes what follows "::" for another URL, which no root allows.
        return (
            "::" not in url
            and ".." not in unquote(url).split("/")
            and url.startswith(tuple(self._prefixes))
        )

    def _checked(self, url: str, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            raise InvalidInput(f"{url!r} has more than {self._max_bytes:,} bytes, the limit")
        return data


def _bytes_input(engine: Engine) -> TensorSpec:
    """Return the input that a URL's content becomes."""
    spec = engine.inputs[0]
    if len(engine.inputs) == 1 and (engine.preprocess or spec.datatype == "BYTES"):
        return spec
    raise InvalidInput(
        f"engine {engine.name!r} takes no encoded image or text, so that its inputs cannot be URLs"
    )


def _shape(spec: TensorSpec) -> list[int]:
    """Return the shape of one value; images replace the tensor by one value each."""
    if spec.datatype != "BYTES":
        return [1]
    return [1 if size < 0 else size for size in spec.shape]
