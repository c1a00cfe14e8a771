"""Errors of a command on standard error, and its exit code."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from synergai.errors import InvalidSettings, SynergaiError
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


INTERRUPTED: Final = 130
"""Exit code of a command that SIGINT ended, as shells have it."""


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Exit without a traceback if the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error of the block as one line and exit: 2 for a usage error, 1 for any other.

    With the environment variable ``SYNERGAI_DEBUG``, unexpected exceptions are raised instead.
    """
    try:
        yield
    except InvalidSettings as error:
        _exit(str(error), code=2)
    except SynergaiError as error:
        _exit(f"{error} (request {error.request_id})" if error.request_id else str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _exit(f"{where}{error.strerror or error}")
    except Exception as error:
        if os.environ.get("SYNERGAI_DEBUG"):
            raise
        _exit(f"internal error: {type(error).__name__}; set SYNERGAI_DEBUG=1 for a traceback")


def _exit(message: str, code: int = 1) -> NoReturn:
    """Print a message as one line on standard error, without control characters, and exit."""
    label = "\033[31m\033[1merror: \033[0m" if sys.stderr.isatty() else "error: "
    print(label + printable(" ".join(message.split())), file=sys.stderr)  # noqa: T201 - output of a command
    sys.exit(code)
