"""The acceptance scripts of this folder: their execution by tests, and how they end."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_S = 30.0
"""Time that an interrupted script has to stop its fleet and remove its files."""


def run_script(name: str, *options: str) -> str:
    """Run a script, check that it succeeds, and return its output."""
    return run([sys.executable, str(Path(__file__).with_name(name)), *options])


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run the command of a script, check that it succeeds, and return its output.

    If the test ends early, as at its time limit, the script and its process group end, too.
    """
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as script:
        try:
            output, errors = script.communicate()
        except BaseException:
            script.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                script.communicate(timeout=STOP_S)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
    print(output)
    assert script.returncode == 0, output + errors
    return output


def verdict(errors: Sequence[str], subject: str = "") -> int:
    for line in errors[:20]:
        print(line)
    print(f"{subject}{len(errors)} errors")
    return 1 if errors else 0
