"""Commands whose options are the fields of a settings model."""

from __future__ import annotations

import enum
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined

from synergai.runtime.settings import POSITIONAL, Address, Settings, bare_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

SettingsT = TypeVar("SettingsT", bound=Settings)


def require(module: str) -> None:
    """Check that what a command's child processes import is there.

    Said by the command itself, the command line can name the extra to install; in the log of a
    child process nobody would look for it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(name=module)


def settings_command(
    model: type[SettingsT], run: Callable[[SettingsT], None]
) -> Callable[..., None]:
    """A typer command with one option per field of `model`, which calls `run` with the settings.

    The command's help is `run`'s docstring, and how to say the same by variables. Register it with
    ``app.command(epilog=…)(settings_command(GatewaySettings, run))``; or with ``app.callback`` and
    ``invoke_without_command=True``, if it has commands of its own, for which `run` is not called.

    Raises (the command):
        InvalidSettings: see ``Settings.load``.
    """
    flags = _flags(model)

    def command(ctx: typer.Context, config: Path | None = None, **options: object) -> None:
        if ctx.invoked_subcommand is not None:
            return
        given = {name: options[name] for name in model.model_fields if options[name] is not None}
        given |= {name: False for name in flags if options[_negated(name)]}
        run(model.load(given, config))

    parameters = [_parameter(model, name, field) for name, field in model.model_fields.items()]
    parameters += [_negation(model, name) for name in flags]
    # Arguments come first, as in the usage line; Python's signature knows no other order here.
    parameters.sort(key=lambda parameter: not isinstance(parameter.default, _ARGUMENT))
    parameters.append(_config_parameter(model))
    parameters.insert(0, _CONTEXT)
    signature = inspect.Signature(parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = run.__name__
    command.__doc__ = _command_help(model, run)
    return command


_CONTEXT = inspect.Parameter(
    "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)


def _command_help(model: type[Settings], run: Callable[[SettingsT], None]) -> str:
    paragraphs = [inspect.getdoc(run) or ""]
    # One line for all: beside each option, its variable would leave no room for what it means.
    options = [name for name, field in model.model_fields.items() if not _is_argument(field)]
    paragraphs.append(
        f"Every option has a variable as well: --{model.option(options[0])} is "
        f"{model.variable(options[0])}, and so on."
    )
    if flags := _flags(model):
        paragraphs[-1] += (
            f" A flag that a variable or a file has set is taken back with --no-, as in "
            f"--no-{model.option(flags[0])}."
        )
    return "\n\n".join(paragraphs)


def _plain(text: str) -> str:
    """`text` with nothing in it that the help would take for markup.

    What ``rich.markup.escape`` does; to import it costs a service 1 MB for good.
    """
    return text.replace("[", r"\[")


_ARGUMENT = type(typer.Argument())


def _is_argument(field: FieldInfo) -> bool:
    return POSITIONAL in field.metadata


def _parameter(model: type[Settings], name: str, field: FieldInfo) -> inspect.Parameter:
    """The option or argument of a field.

    Every value but a flag reaches the model as text: one place judges it, wherever it is from.
    """
    is_flag = _is_flag(field)
    text = _plain(field.description or "")
    if _is_argument(field):
        required = ... if field.is_required() else None
        default: Any = typer.Argument(required, help=text, show_default=False)
    else:
        if choices := _folded_choices(field):
            text = f"{text} [dim]{_plain(f'[one of: {choices}]')}[/dim]".lstrip()
        # The model itself fills in the default; here it is only named.
        if value := _default(field):
            text = f"{text} [dim]{_plain(f'[default: {value}]')}[/dim]".lstrip()
        metavar = None if is_flag else _metavar(field)
        default = typer.Option(
            None, f"--{model.option(name)}", help=text, metavar=metavar, show_default=False
        )
    annotation = (bool if is_flag else str) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _is_flag(field: FieldInfo) -> bool:
    return bare_type(field.annotation) is bool


def _flags(model: type[Settings]) -> list[str]:
    return [name for name, field in model.model_fields.items() if _is_flag(field)]


def _negated(flag: str) -> str:
    return f"no_{flag}"


def _negation(model: type[Settings], flag: str) -> inspect.Parameter:
    """``--no-…``, for a flag that is set elsewhere.

    An option of its own that the help does not list: beside each flag, typer gives it a column,
    which on a narrow terminal takes the room of the texts.
    """
    option = typer.Option(False, f"--no-{model.option(flag)}", hidden=True)
    return inspect.Parameter(
        _negated(flag), inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool
    )


def _config_parameter(model: type[Settings]) -> inspect.Parameter:
    option = typer.Option(
        None,
        "--config",
        metavar="FILE",
        envvar=model.variable("config"),
        show_envvar=False,
        help="TOML file with any of these settings.",
    )
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None
    )


_METAVARS: dict[Any, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}
_ADDRESS = get_args(Address)[1]
_WIDEST_METAVAR = 16
"""Columns; the names of more choices stand in the text, for a narrow terminal's sake."""


def _metavar(field: FieldInfo) -> str:
    parts = (field.annotation, *get_args(field.annotation))
    if any(_ADDRESS in getattr(part, "__metadata__", field.metadata) for part in parts):
        return "HOST:PORT"
    return _metavar_of(bare_type(field.annotation))


def _metavar_of(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"{_metavar_of(bare_type(get_args(kind)[0]))},…"
    if get_origin(kind) is dict:
        return "KEY=VALUE,…"
    if choices := _choices(kind):
        joined = "|".join(choices)
        return joined if len(joined) <= _WIDEST_METAVAR else "NAME"
    return _METAVARS.get(kind, "TEXT")


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(choice.value) for choice in kind]
    return []


def _folded_choices(field: FieldInfo) -> str:
    """The choices of a field whose metavar has no room for them."""
    choices = _choices(bare_type(field.annotation))
    return ", ".join(choices) if len("|".join(choices)) > _WIDEST_METAVAR else ""


def _default(field: FieldInfo) -> str:
    """How the help shows the default: not at all where there is none, nor for a flag left out."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in value.items())
    return str(value.value if isinstance(value, enum.Enum) else value)
