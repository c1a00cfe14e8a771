"""The ``synergai`` command: one name for every application.

Each application keeps its commands in a module of its own, which is imported when one of them is
asked for: the help is quick, and a machine needs what its own role needs, no more.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from synergai.errors import InvalidSettings, NotSupported, SynergaiError
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES: Final = frozenset(
    ("synergai", "gateway", "worker_agent", "engines", "profiler", "loadgen", "simulator")
)


@dataclass(frozen=True, slots=True)
class Application:
    """Where a command's own ``typer.Typer`` is.

    Attributes:
        home: ``module:attribute``.
        summary: what it does, in a line.
        panel: the heading under which the help lists it.
        extra: what ``pip install synergai[…]`` needs for it; empty means nothing more.
    """

    home: str
    summary: str
    panel: str
    extra: str = ""


_SERVE: Final = "Serve"
_USE: Final = "Use"
_PREPARE: Final = "Prepare and measure"

APPLICATIONS: Final = {
    "gateway": Application(
        "gateway.cli:app", "Run the gateway: clients and agents connect to it.", _SERVE, "gateway"
    ),
    "agent": Application(
        "worker_agent.cli.main:app",
        "Run the agent that serves engines on this machine.",
        _SERVE,
        "agent",
    ),
    "infer": Application(
        "synergai.cli.infer:app", "Run one query and print its answer.", _USE, "client"
    ),
    "submit": Application(
        "synergai.cli.jobs:submit_app", "Submit a job: queries of an engine within a QoS.", _USE
    ),
    "jobs": Application("synergai.cli.jobs:app", "List, show, watch and cancel jobs.", _USE),
    "workers": Application("synergai.cli.workers:app", "Show the workers that have joined.", _USE),
    "engines": Application(
        "synergai.cli.engines:app",
        "Build, fetch, add, list and inspect engines.",
        _PREPARE,
        "engines",
    ),
    "profile": Application(
        "profiler.cli:app", "Measure engines here, into the dictionary.", _PREPARE, "profiler"
    ),
    "dictionary": Application(
        "synergai.cli.dictionary:app",
        "Show, import and export the configuration dictionary.",
        _PREPARE,
        "gateway",
    ),
    "loadgen": Application(
        "synergai.cli.loadgen:app", "Load a gateway with MLPerf LoadGen.", _PREPARE, "loadgen"
    ),
    "load": Application(
        "synergai.cli.load:app",
        "Send a gateway requests at given rates, or find the rate that it can serve.",
        _PREPARE,
        "loadgen",
    ),
    "simulate": Application(
        "synergai.cli.simulate:app",
        "Compare schedulers on the thesis's experiments, in virtual time.",
        _PREPARE,
        "simulator",
    ),
    "experiment": Application(
        "synergai.cli.experiment:app",
        "Run one of the thesis's experiments, live as well.",
        _PREPARE,
        "all",
    ),
}


@contextmanager
def _naming_what_is_missing(command: str) -> Iterator[None]:
    """Say which extra to install, if a library that only this command needs is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in PACKAGES:
            raise
        extra = APPLICATIONS[command].extra or "all"
        raise NotSupported(
            f"'synergai {command}' needs {module}, which is not installed here; "
            f"pip install 'synergai[{extra}]'"
        ) from None


class _Applications(TyperGroup):
    """Lists every application by its summary, and imports one when it is run."""

    # Any: the parser's types are typer's own affair, and have moved between its versions.
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in APPLICATIONS:
            command = _load(name)
        return name, command, rest


def _load(name: str) -> Any:
    """The command of an application."""
    module, _, attribute = APPLICATIONS[name].home.partition(":")
    with _naming_what_is_missing(name):
        command = typer.main.get_command(getattr(import_module(module), attribute))
    # Completion is installed once, for `synergai` as a whole.
    completion = ("install_completion", "show_completion")
    command.params = [each for each in command.params if each.name not in completion]
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = _flowing(each.help or "")
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        with _naming_what_is_missing(name):
            return run(ctx)

    command.invoke = invoke  # type: ignore[method-assign]  # some libraries are imported late
    return command


def _flowing(text: str) -> str:
    """`text` without the line breaks of a docstring, which suit no terminal but the author's."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


app: Final = typer.Typer(
    cls=_Applications,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=(
        "Two engines on one machine: "
        "[bold]synergai engines build onnx_mobilenet_op11 onnx_digits[/bold], "
        "[bold]synergai profile[/bold], then [bold]synergai gateway[/bold] and "
        "[bold]synergai agent[/bold] in terminals of their own, and "
        "[bold]synergai submit onnx_digits --queries 500 --qos 5 --watch[/bold]."
    ),
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"synergai {version('synergai')}")
        raise typer.Exit


@app.callback()
def _synergai(
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_show_version,
        is_eager=True,
        help="Show the version and exit.",
    ),
) -> None:
    """Serve inference under QoS deadlines on unlike machines."""


def _stub() -> None:
    """Stand in the help for an application that has not been imported."""


for _name, _application in APPLICATIONS.items():
    app.command(_name, help=_application.summary, rich_help_panel=_application.panel)(_stub)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 misused, 130 interrupted."""
    # Read by gRPC when it is imported. Its C core writes to standard error what our own messages
    # say better; and no process of ours forks, so that its precautions for it only cost time.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Its event engine reads sockets on a thread of its own, which wakes the one that waits for
    # what was read. Without it that one reads them itself: 0.1 ms less on a request's way.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text, nor need a terminal know every letter.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        typer.main.get_command(app)(args=arguments, prog_name="synergai")
    except InvalidSettings as error:
        _complain(str(error))
        sys.exit(2)
    except SynergaiError as error:
        _complain(str(error))
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SYNERGAI_DEBUG"):
            raise
        _complain(
            f"a fault of synergai itself, {type(error).__name__}; "
            "SYNERGAI_DEBUG=1 in the environment shows where"
        )
        sys.exit(1)
    sys.exit(0)


def _complain(message: str) -> None:
    """One line on standard error, whatever the message has in it."""
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(printable(" ".join(message.split())), err=True)
