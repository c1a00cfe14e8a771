"""Whether the native server is used."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal, TypeAlias

from synergai.errors import InvalidInput

GrpcServer: TypeAlias = Literal["grpcio", "native", "auto"]

_PACKAGE: Final = "pygrpc-native"
_VERSION: Final = "0.5.0"
"""The version that the project is tested with. It is young, so no other is used."""

_log = logging.getLogger(__name__)


def is_native(server: GrpcServer) -> bool:
    """Return whether a setting chooses the native server.

    Raises:
        InvalidInput: it does, but the package is not installed, or in another version.
    """
    if server == "grpcio":
        return False
    try:
        installed = version(_PACKAGE)
    except PackageNotFoundError:
        installed = "none"
    if installed == _VERSION:
        return True
    fault = f"the native gRPC server needs {_PACKAGE} {_VERSION}, and {installed} is installed"
    if server == "native":
        raise InvalidInput(f"{fault}: run pip install 'synergai[native]', or choose grpcio")
    _log.info("%s: using grpcio", fault)
    return False
