"""The program ``synergai``, and ``python -m synergai``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from synergai.cli.process import exit_on_interrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIBRARIES: Final = ("rich", "typer")
"""Imported by every command; the extra ``cli`` and the roles' extras install them."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see `synergai.cli.main.main`."""
    try:
        with exit_on_interrupt():
            from synergai.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name not in _LIBRARIES:
            raise
        sys.exit(
            f"error: the command line needs {error.name}, which is not installed; run "
            "pip install 'WHEEL[cli]', where WHEEL is the path of SynergAI's wheel, or install a "
            "role, such as 'WHEEL[gateway]'"
        )
    with exit_on_interrupt():  # the parser is still to be built
        run(arguments)


if __name__ == "__main__":
    main()
