"""Process that serves as the agent.

``synergai agent`` executes it in place of itself, under the same process id, once the settings are
valid: the command line takes memory that serving does not need.
"""

from __future__ import annotations

import sys

from synergai.runtime.interrupts import exit_on_interrupt


def main() -> None:
    """Run the agent whose configuration is the only argument."""
    with exit_on_interrupt():  # the imports take a second or more
        from synergai.cli.errors import exit_on_error
        from synergai.runtime.reexec import decode_config
        from synergai.runtime.service import run_service
        from worker_agent.agent_settings import AgentSettings
        from worker_agent.app import Agent

        config = decode_config(sys.argv[1], AgentSettings)
        with exit_on_error():
            run_service(lambda: Agent(config), config.log_level, config.probes)


if __name__ == "__main__":
    main()
