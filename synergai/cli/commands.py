"""Commands whose options are settings."""

from __future__ import annotations

import enum
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin

import typer
from msgspec import NODEFAULT

from synergai.errors import InvalidSettings
from synergai.runtime.settings import Option, Settings, bare_type, choices_of, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


SettingsT = TypeVar("SettingsT", bound=Settings)


def require(module: str) -> None:
    """Check that a module which a command needs later is installed.

    Checking it up front lets the command line name the extra to install, instead of leaving the
    error in the log of a child process.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(name=module)


def settings_command(
    settings: type[SettingsT], run: Callable[[SettingsT], None]
) -> Callable[..., None]:
    """Build a typer command that has the settings with a description as options.

    The command loads the settings and calls `run` with them. Its help is `run`'s docstring and a
    paragraph about environment variables. Register it with
    ``app.command(epilog=…)(settings_command(GatewaySettings, run))``; or with ``app.callback`` and
    ``invoke_without_command=True`` if it has subcommands, for which `run` is not called.
    """
    shown = [option for option in options_of(settings).values() if option.description]

    def command(ctx: typer.Context, config: Path | None = None, **options: object) -> None:
        if ctx.invoked_subcommand is not None:
            if config or any(value not in (None, False) for value in options.values()):
                raise InvalidSettings(
                    f"options before {ctx.invoked_subcommand!r} have no effect: write them after it"
                )
            return
        values = {
            each.name: value if each.default is not True else False  # --no-… turns it off
            for each in shown
            if (value := options[each.name]) is not None
        }
        run(settings.load(values, config))

    panels = {name: panel for panel, names in settings.panels.items() for name in names}
    parameters = [_parameter(option, panels.get(option.name)) for option in shown]
    # Arguments first, as in the usage line, which follows the order of the signature.
    parameters.sort(key=lambda parameter: not isinstance(parameter.default, _ARGUMENT))
    if settings.has_file:
        parameters.append(_config_parameter(settings))
    parameters.insert(0, _CONTEXT)
    signature = inspect.Signature(parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = run.__name__
    command.__doc__ = _command_help(settings, run, shown)
    return command


_CONTEXT: Final = inspect.Parameter(
    "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)


def _command_help(
    settings: type[Settings],
    run: Callable[[SettingsT], None],
    shown: Sequence[Option],
) -> str:
    # One sentence for all: naming each option's variable would leave no room for its help.
    first = next(option for option in shown if not option.is_positional)
    text = (
        "Every option can also be set by an environment variable: "
        f"--{first.flag} by {settings.env_var(first.name)}, and so on."
    )
    return f"{inspect.getdoc(run) or ''}\n\n{text}"


def _escape_markup(text: str) -> str:
    """Escape rich markup in `text`.

    Like ``rich.markup.escape``, whose import would cost each service 1 MB.
    """
    return text.replace("[", r"\[")


_ARGUMENT: Final = type(typer.Argument())


def _parameter(option: Option, panel: str | None) -> inspect.Parameter:
    """Return the parameter of a typer command for an option or argument, in a panel of the help.

    Values other than flags are passed on as text: the settings alone validate them, whatever their
    source.
    """
    is_flag = option.bare_type is bool
    text = _escape_markup(option.description)
    if option.is_positional:
        required = ... if option.default is NODEFAULT else None
        default: Any = typer.Argument(required, help=text, show_default=False)
    else:
        if choices := _overflow_choices(option):
            text = f"{text} [dim]{_escape_markup(f'[one of: {choices}]')}[/dim]"
        # Shown only; the settings fill in the default.
        if value := _default_text(option.default):
            text = f"{text} [dim]{_escape_markup(f'[default: {value}]')}[/dim]"
        metavar = None if is_flag else option.metavar or _metavar_of(option.bare_type)
        default = typer.Option(
            None,
            f"--{option.flag}",
            help=text,
            metavar=metavar,
            show_default=False,
            rich_help_panel=panel,
        )
    annotation = (bool if is_flag else str) | None
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _config_parameter(settings: type[Settings]) -> inspect.Parameter:
    option = typer.Option(
        None,
        "--config",
        metavar="FILE",
        envvar=settings.env_var("config"),
        show_envvar=False,
        help="TOML file with any of these settings.",
    )
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None
    )


_METAVARS: Final[dict[Any, str]] = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}
_MAX_METAVAR_WIDTH: Final = 16
"""Columns; longer lists of choices move to the help text, to fit narrow terminals."""
_INSTALLATION: Final = Path(__file__).parents[2]


def _metavar_of(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"{_metavar_of(bare_type(get_args(kind)[0]))},…"
    if get_origin(kind) is dict:
        return "KEY=VALUE,…"
    if choices := choices_of(kind):
        joined = "|".join(choices)
        return joined if len(joined) <= _MAX_METAVAR_WIDTH else "NAME"
    return _METAVARS.get(kind, "TEXT")


def _overflow_choices(option: Option) -> str:
    """Return an option's choices if they are too long for its metavar."""
    choices = choices_of(option.bare_type)
    return ", ".join(choices) if len("|".join(choices)) > _MAX_METAVAR_WIDTH else ""


def _default_text(value: Any) -> str:
    """Return the default as shown in the help; empty for no default and for flags."""
    if value is NODEFAULT or value is None:
        return ""
    if isinstance(value, bool):
        return ""
    if isinstance(value, Path) and value.is_relative_to(_INSTALLATION):
        return ""  # part of the installation, which the description names
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in value.items())
    return str(value.value if isinstance(value, enum.Enum) else value)
