"""The ``synergai`` command, which dispatches to every application.

An application's module is imported only to run it: the help is fast, and a machine needs the
dependencies of its own role only.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from synergai.cli.process import exit_on_error
from synergai.errors import NotSupported
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES: Final = frozenset(("synergai", "gateway", "worker_agent", "profiler"))


@dataclass(frozen=True, slots=True)
class Application:
    """Location and help of an application's ``typer.Typer``."""

    entry_point: str
    summary: str
    panel: str
    extra: str


_SERVE: Final = "Serve"
_USE: Final = "Use"
_PREPARE: Final = "Prepare and measure"

APPLICATIONS: Final = {
    "serve": Application(
        "gateway.serve.cli:app",
        "Serve the models of a directory: a gateway and a worker in one process.",
        _SERVE,
        "serve",
    ),
    "gateway": Application(
        "gateway.cli:app",
        "Run the gateway, which clients and agents connect to.",
        _SERVE,
        "gateway",
    ),
    "agent": Application(
        "worker_agent.cli:app",
        "Run the agent, which serves engines on this machine.",
        _SERVE,
        "agent",
    ),
    "access": Application(
        "gateway.entry.access.cli:app",
        "Make tokens for clients and workers, and check the access table of a gateway.",
        _SERVE,
        "gateway",
    ),
    "infer": Application(
        "synergai.cli.infer:app", "Run one query and print its answer.", _USE, "cli,client"
    ),
    "submit": Application(
        "synergai.cli.submit:app",
        "Submit a job on an engine, over your files or its samples.",
        _USE,
        "cli,client",
    ),
    "jobs": Application(
        "synergai.cli.jobs:app",
        "List, show, watch and cancel jobs, and fetch results.",
        _USE,
        "cli,client",
    ),
    "explain": Application(
        "synergai.cli.fleet:explain_app", "Say why a request or job is late.", _USE, "cli,client"
    ),
    "routes": Application(
        "synergai.cli.fleet:routes_app",
        "Show the engines that are deployed in stages.",
        _USE,
        "cli",
    ),
    "workers": Application(
        "synergai.cli.fleet:workers_app", "Show the registered workers.", _USE, "cli"
    ),
    "engines": Application(
        "profiler.engines.cli:app",
        "Build, add, list, inspect, load, unload and push engines.",
        _PREPARE,
        "engines",
    ),
    "profile": Application(
        "profiler.measuring.cli:app",
        "Profile engines on this machine into the dictionary.",
        _PREPARE,
        "profiler",
    ),
    "dictionary": Application(
        "profiler.dictionary.cli:app",
        "Show, import, export and delete entries of the configuration dictionary.",
        _PREPARE,
        "gateway",
    ),
    "loadgen": Application(
        "profiler.loadgen.cli:app", "Benchmark a gateway with MLPerf LoadGen.", _PREPARE, "loadgen"
    ),
    "load": Application(
        "profiler.loadgen.traces.cli:app",
        "Send requests at given rates, or find the highest sustainable rate.",
        _PREPARE,
        "loadgen",
    ),
    "simulate": Application(
        "profiler.simulator.cli:app",
        "Compare schedulers on the thesis's experiments in virtual time.",
        _PREPARE,
        "simulator",
    ),
    "capacity": Application(
        "profiler.simulator.cli:capacity_app",
        "Find the workers that a demand needs, in virtual time.",
        _PREPARE,
        "simulator",
    ),
    "plan": Application(
        "profiler.planning.cli:app",
        "Plan where an engine runs: whole, as replicas, or in stages.",
        _PREPARE,
        "engines,profiler",
    ),
    "report": Application(
        "profiler.reports.cli:app",
        "Report on profiles and policies: pages with figures and tables.",
        _PREPARE,
        "report",
    ),
}


@contextmanager
def _suggesting_extra(command: str) -> Iterator[None]:
    """Name the extra to install if a library that `command` needs is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in PACKAGES:
            raise
        raise NotSupported(
            f"'synergai {command}' needs {module}, which is not installed; "
            + pip_install(APPLICATIONS[command].extra)
        ) from None


_TYPE_NAMES: Final = {"int": "INTEGER", "float": "NUMBER", "str": "TEXT", "path": "PATH"}


def _display_type(parameter: Any, _ctx: Any) -> str:
    """Name an option's type as `settings_command` does; empty for a flag, which takes no value."""
    if isinstance(parameter, TyperArgument) or getattr(parameter, "is_flag", False):
        return ""
    if parameter.type_descriptor.is_path:
        return "PATH"
    return _TYPE_NAMES.get(parameter.bare_type(), "TEXT")


# typer's own names, such as `<bool>` for a flag, have no setting. Options with a metavar keep it.
TyperOption.display_type = _display_type  # type: ignore[assignment, method-assign]  # see above
TyperArgument.display_type = _display_type  # type: ignore[assignment, method-assign]  # see above


class _LazyGroup(TyperGroup):
    """Command group that lists applications by their summaries and imports one to run it."""

    # Any: the types of typer's parser are private and differ between its versions.
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in APPLICATIONS:
            command = _load(name)
        return name, command, rest


def _load(name: str) -> Any:
    module, _, attribute = APPLICATIONS[name].entry_point.partition(":")
    with _suggesting_extra(name):
        command = typer.main.get_command(getattr(import_module(module), attribute))
    # Completion is installed once, for `synergai` as a whole.
    completion = ("install_completion", "show_completion")
    command.params = [each for each in command.params if each.name not in completion]
    for each in (command, *getattr(command, "commands", {}).values()):
        each.help = _unwrap(each.help or "")
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        with _suggesting_extra(name):
            return run(ctx)

    command.invoke = invoke  # type: ignore[method-assign]  # commands import some libraries when they run
    return command


def _unwrap(text: str) -> str:
    """Join the lines of each paragraph, to be wrapped at the terminal's width."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


app: Final = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=(
        "Quick start on one machine, with the extra serve: "
        "[bold]synergai engines build onnx_digits[/bold], then [bold]synergai serve[/bold], and "
        "in another terminal [bold]synergai submit onnx_digits --queries 500 --qos 5 "
        "--watch[/bold]."
    ),
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # deferred to keep other commands fast

        typer.echo(f"synergai {version('synergai')}")
        raise typer.Exit


@app.callback()
def _synergai(
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Show the version and exit.",
    ),
) -> None:
    """Serve inference under QoS deadlines on heterogeneous machines."""


def _placeholder() -> None:
    """Represent an application in the help without importing it."""


for _name, _application in APPLICATIONS.items():
    app.command(_name, help=_application.summary, rich_help_panel=_application.panel)(_placeholder)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.
    """
    # gRPC reads these when it is imported. Its C core logs to standard error what our messages say
    # better, and fork support costs time although no process of ours forks.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # The event engine reads sockets on an extra thread that wakes the polling one. Without it the
    # polling thread reads them itself, which saves 0.1 ms per request.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names may not be valid text, and terminals may not support every character.
        sys.stdout.reconfigure(errors="backslashreplace")
    with exit_on_error():
        typer.main.get_command(app)(args=arguments, prog_name="synergai")
    sys.exit(0)
