"""Process of a gateway with its own worker, which ``synergai serve`` executes."""

from __future__ import annotations

import sys

from synergai.runtime.interrupts import exit_on_interrupt


def main() -> None:
    """Run the server whose configuration is the only argument."""
    with exit_on_interrupt():  # the imports take a second or more
        from gateway.serve.serve_settings import ServeSettings
        from gateway.serve.server import LocalServer
        from synergai.cli.errors import exit_on_error
        from synergai.runtime.reexec import decode_config
        from synergai.runtime.service import run_service

        config = decode_config(sys.argv[1], ServeSettings)
        with exit_on_error():
            run_service(lambda: LocalServer(config), config.gateway.log_level)


if __name__ == "__main__":
    main()
