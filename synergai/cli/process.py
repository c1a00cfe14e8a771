"""The process of a command: its exit code, and the service that it becomes.

A command executes a gateway or an agent in place of itself, under the same process id, once the
settings are valid: the command line and the validation take memory that serving does not need.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from synergai.errors import InvalidSettings, SynergaiError
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct


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
    except UnicodeEncodeError as error:  # such as an argument that is none
        _exit(f"{error.object!r} is not valid Unicode text")
    except Exception as error:
        if os.environ.get("SYNERGAI_DEBUG"):
            raise
        _exit(f"internal error: {type(error).__name__}; set SYNERGAI_DEBUG=1 for a traceback")


def _exit(message: str, code: int = 1) -> NoReturn:
    """Print a message as one line on standard error, without control characters, and exit."""
    label = "\033[31m\033[1merror: \033[0m" if sys.stderr.isatty() else "error: "
    print(label + printable(" ".join(message.split())), file=sys.stderr)  # noqa: T201 - output of a command
    sys.exit(code)


def serve_instead(service: str, config: Struct) -> NoReturn:
    """Serve in place of this program.

    Args:
        service: class of the service, as ``MODULE:NAME``, which is made of its configuration.
        config: its configuration, with ``log_level`` and ``probes``.
    """
    from synergai.runtime.settings import encode_config

    kind = type(config)
    sys.stdout.flush()
    sys.stderr.flush()
    settings = f"{kind.__module__}:{kind.__name__}"
    command = (sys.executable, "-m", __name__, service, settings, encode_config(config))
    os.execv(sys.executable, command)  # noqa: S606  # no shell is needed


def main() -> None:
    """Run the service that the arguments of `serve_instead` name."""
    with exit_on_interrupt():  # the imports take a second or more
        from pkgutil import resolve_name

        from synergai.runtime.service import run_service
        from synergai.runtime.settings import decode_config

        service, settings, text = sys.argv[1:]
        make = resolve_name(service)
        config = decode_config(text, resolve_name(settings))
        with exit_on_error():
            run_service(lambda: make(config), config.log_level, config.probes)


if __name__ == "__main__":
    main()
