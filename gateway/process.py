"""Process that serves as the gateway.

``synergai gateway`` executes it in place of itself, under the same process id, once the settings
are valid: the command line and the validation take memory that serving does not need.
"""

from __future__ import annotations

import sys

from synergai.runtime.interrupts import exit_on_interrupt


def main() -> None:
    """Run the gateway whose configuration is the only argument."""
    with exit_on_interrupt():  # the imports take a second or more
        from gateway.gateway_settings import GatewaySettings
        from gateway.server import GatewayProcess
        from synergai.cli.errors import exit_on_error
        from synergai.runtime.reexec import decode_config
        from synergai.runtime.service import run_service

        config = decode_config(sys.argv[1], GatewaySettings)
        with exit_on_error():
            run_service(lambda: GatewayProcess(config), config.log_level, config.probes)


if __name__ == "__main__":
    main()
