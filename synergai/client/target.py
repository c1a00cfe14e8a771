"""Targets of clients: a gateway, or a map of cells; and their defaults and credentials."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from synergai.errors import InvalidInput
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell.

    Attributes:
        gateways: target of its clients.
        engines: patterns of the engines that it serves, as of a shell.
    """

    gateways: str
    engines: tuple[str, ...] = ("*",)

    def serves(self, engine: str) -> bool:
        """Return whether the name of an engine, or of a version of it, matches a pattern."""
        name = engine.partition("/")[0]
        return any(fnmatchcase(name, pattern) for pattern in self.engines)


def read_cells(path: Path) -> dict[str, Cell]:
    """Read a map: a TOML file with a table ``[NAME]`` for each cell.

    Raises:
        InvalidInput: the file cannot be used.
    """
    cells = read_toml(path, dict[str, Cell], f"cells {path}")
    if not cells:
        raise InvalidInput(f"cells {path} has no cell: write a table [NAME] for each")
    return cells


def cells_of(target: str) -> dict[str, Cell]:
    """Return the cells that a target names: ``@FILE`` all, ``@FILE:NAME`` one.

    An address is a cell without a name.
    """
    if not target.startswith("@"):
        return {"": Cell(target)}
    path, _, name = target[1:].partition(":")
    cells = read_cells(Path(path))
    if not name:
        return cells
    if name not in cells:
        raise InvalidInput(f"{path} has no cell {name!r}, but {', '.join(cells)}")
    return {name: cells[name]}


def cell_of(cells: Mapping[str, Cell], engine: str) -> str:
    """Return the name of the first cell that serves an engine; empty for none."""
    return next((name for name, cell in cells.items() if cell.serves(engine)), "")
