"""The gateway that commands call by default, and the credentials for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypedDict

from synergai.errors import InvalidInput

TARGET_VARIABLE: Final = "SYNERGAI_TARGET"
TLS_CA_VARIABLE: Final = "SYNERGAI_TLS_CA"
TLS_CERT_VARIABLE: Final = "SYNERGAI_TLS_CERT"
TLS_KEY_VARIABLE: Final = "SYNERGAI_TLS_KEY"
TOKEN_VARIABLE: Final = "SYNERGAI_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE: Final = "SYNERGAI_TOKEN_FILE"  # noqa: S105 - as above
INSECURE_VARIABLE: Final = "SYNERGAI_INSECURE"
"""Environment variables read by every command; those of a command, and its options, win."""
DEFAULT_TARGET: Final = "127.0.0.1:8001"
_TRUE: Final = frozenset({"1", "true", "yes", "on"})


class ConnectionOptions(TypedDict):
    """Arguments of a `Client` that encrypt and authenticate its connection; see there."""

    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    token: str
    insecure: bool


def connection() -> ConnectionOptions:
    """Return the arguments for a client that the environment names."""
    token_file = _path(TOKEN_FILE_VARIABLE)
    return ConnectionOptions(
        tls_ca=_path(TLS_CA_VARIABLE),
        tls_cert=_path(TLS_CERT_VARIABLE),
        tls_key=_path(TLS_KEY_VARIABLE),
        token=_read_token(token_file) if token_file else os.environ.get(TOKEN_VARIABLE, ""),
        insecure=os.environ.get(INSECURE_VARIABLE, "").lower() in _TRUE,
    )


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except OSError as error:
        raise InvalidInput(f"the token file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"the token file {path} is not text") from None
    if not token:
        raise InvalidInput(f"the token file {path} is empty")
    return token
