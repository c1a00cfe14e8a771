"""The command line of a benchmark: what to measure, how long, and the document to update."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from benchmarks.client import WrongResponse
from benchmarks.report import DocumentBlock, describe_machine, preamble
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any


def parser_for(module: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have.

    Args:
        module: the module to run with ``python -m``.
        documentation: its docstring, whose first line is the description.
    """
    description = (documentation or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    return parser


def run(
    parser: argparse.ArgumentParser,
    choices: Sequence[str],
    measure: Callable[[Sequence[str], argparse.Namespace], Coroutine[Any, Any, list[str]]],
    *,
    block: str,
    command: str,
) -> None:
    """Parse the command line, measure, and write the report.

    Args:
        parser: the benchmark's parser.
        choices: names of all that can be measured.
        measure: measures those with the given names; returns Markdown texts.
        block: name of the block in the document.
        command: the make target, for the report.
    """
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(choices)} (default: all)"
    )
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(choices)):
        parser.error(f"unknown name {', '.join(unknown)}; choose from {', '.join(choices)}")
    machine = describe_machine()
    try:
        document = DocumentBlock(arguments.write, block) if arguments.write else None
        texts = uvloop.run(measure(arguments.names or choices, arguments))
    except (SynergaiError, WrongResponse) as error:
        parser.exit(1, f"{error}\n")
    if document is not None:
        document.write("\n\n".join([preamble(command, machine), *texts]))
