"""Process that serves as a gateway or an agent.

A command executes it in place of itself, under the same process id, once the settings are valid:
the command line and the validation take memory that serving does not need.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from synergai.cli.errors import exit_on_error, exit_on_interrupt

if TYPE_CHECKING:
    from msgspec import Struct


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
