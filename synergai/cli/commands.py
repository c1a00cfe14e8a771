"""Typer commands whose options are the fields of a settings model."""

from __future__ import annotations

import enum
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic_core import PydanticUndefined

from synergai.errors import InvalidSettings
from synergai.runtime.settings import (
    POSITIONAL,
    Address,
    Duration,
    HubAddress,
    Settings,
    Size,
    bare_type,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic.fields import FieldInfo

SettingsT = TypeVar("SettingsT", bound=Settings)


def require(module: str) -> None:
    """Check that a module which a command needs later is installed.

    Checking it up front lets the command line name the extra to install, instead of leaving the
    error in the log of a child process.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(name=module)


def check_plot(path: Path) -> None:
    """Check, before a measurement, that its plot can be drawn into a file.

    Raises:
        InvalidSettings: the file is not a PNG file, or its directory cannot be made.
        ModuleNotFoundError: matplotlib is not installed.
    """
    require("matplotlib")
    if path.suffix.lower() != ".png":
        raise InvalidSettings(f"--plot: {path} must end in .png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(f"--plot: {path.parent} cannot be made: {error.strerror}") from error


def settings_command(
    model: type[SettingsT], run: Callable[[SettingsT], None]
) -> Callable[..., None]:
    """Build a typer command with one option per field of `model`.

    The command loads the settings and calls `run` with them. Its help is `run`'s docstring and a
    paragraph about environment variables. Register it with
    ``app.command(epilog=…)(settings_command(GatewaySettings, run))``; or with ``app.callback`` and
    ``invoke_without_command=True`` if it has subcommands, for which `run` is not called.

    Args:
        model: the settings.
        run: the command's implementation.

    Returns:
        The command, which raises `InvalidSettings` as ``Settings.load`` does.
    """
    fields, flags = _documented(model), _flags(model)

    def command(ctx: typer.Context, config: Path | None = None, **options: object) -> None:
        if ctx.invoked_subcommand is not None:
            return
        values = {name: options[name] for name in fields if options[name] is not None}
        values |= {name: False for name in flags if options[_negated_name(name)]}
        run(model.load(values, config))

    parameters = [_parameter(model, name, field) for name, field in fields.items()]
    parameters += [_negated_flag(model, name) for name in flags]
    # Arguments first, as in the usage line, which follows the order of the signature.
    parameters.sort(key=lambda parameter: not isinstance(parameter.default, _ARGUMENT))
    parameters.append(_config_parameter(model))
    parameters.insert(0, _CONTEXT)
    signature = inspect.Signature(parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = run.__name__
    command.__doc__ = _command_help(model, run)
    return command


def _documented(model: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields of `model` that are options."""
    return {name: field for name, field in model.model_fields.items() if field.description}


_CONTEXT = inspect.Parameter(
    "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
)


def _command_help(model: type[Settings], run: Callable[[SettingsT], None]) -> str:
    paragraphs = [inspect.getdoc(run) or ""]
    # One sentence for all: naming each option's variable would leave no room for its help.
    options = [name for name, field in _documented(model).items() if not _is_argument(field)]
    paragraphs.append(
        "Every option can also be set by an environment variable: "
        f"--{model.option_name(options[0])} by {model.env_var(options[0])}, and so on."
    )
    if flags := _flags(model):
        paragraphs[-1] += (
            f" A flag set by a variable or file is reset with the prefix --no-, as in "
            f"--no-{model.option_name(flags[0])}."
        )
    return "\n\n".join(paragraphs)


def _escape_markup(text: str) -> str:
    """Escape rich markup in `text`.

    Like ``rich.markup.escape``, whose import would cost each service 1 MB.
    """
    return text.replace("[", r"\[")


_ARGUMENT = type(typer.Argument())


def _is_argument(field: FieldInfo) -> bool:
    return POSITIONAL in field.metadata


def _parameter(model: type[Settings], name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the option or argument for a field.

    Values other than flags are passed on as text: the model alone validates them, whatever their
    source.
    """
    is_flag = _is_flag(field)
    text = _escape_markup(field.description or "")
    if _is_argument(field):
        required = ... if field.is_required() else None
        default: Any = typer.Argument(required, help=text, show_default=False)
    else:
        if choices := _overflow_choices(field):
            text = f"{text} [dim]{_escape_markup(f'[one of: {choices}]')}[/dim]".lstrip()
        # Shown only; the model fills in the default.
        if value := _default_text(field):
            text = f"{text} [dim]{_escape_markup(f'[default: {value}]')}[/dim]".lstrip()
        metavar = None if is_flag else _metavar(field)
        default = typer.Option(
            None, f"--{model.option_name(name)}", help=text, metavar=metavar, show_default=False
        )
    annotation = (bool if is_flag else str) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _is_flag(field: FieldInfo) -> bool:
    return bare_type(field.annotation) is bool


def _flags(model: type[Settings]) -> list[str]:
    return [name for name, field in _documented(model).items() if _is_flag(field)]


def _negated_name(flag: str) -> str:
    return f"no_{flag}"


def _negated_flag(model: type[Settings], flag: str) -> inspect.Parameter:
    """Return the hidden option ``--no-…``, which resets a flag set by a variable or file.

    Declared as a separate option because typer's own ``--flag/--no-flag`` adds a column to the
    help, which leaves too little room on narrow terminals.
    """
    option = typer.Option(False, f"--no-{model.option_name(flag)}", hidden=True)
    return inspect.Parameter(
        _negated_name(flag), inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool
    )


def _config_parameter(model: type[Settings]) -> inspect.Parameter:
    option = typer.Option(
        None,
        "--config",
        metavar="FILE",
        envvar=model.env_var("config"),
        show_envvar=False,
        help="TOML file with any of these settings.",
    )
    return inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None
    )


_METAVARS: dict[Any, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}
_ADDRESSES = {get_args(each)[1] for each in (Address, HubAddress)}
_SIZE = get_args(Size)[1]
_DURATION = get_args(Duration)[1]
_MAX_METAVAR_WIDTH = 16
"""Columns; longer lists of choices move to the help text, to fit narrow terminals."""
_PACKAGE = Path(__file__).parents[1]


def _metavar(field: FieldInfo) -> str:
    parts = (field.annotation, *get_args(field.annotation))
    if any(_ADDRESSES & set(getattr(part, "__metadata__", field.metadata)) for part in parts):
        return "HOST:PORT"
    if any(_SIZE in getattr(part, "__metadata__", field.metadata) for part in parts):
        return "SIZE"
    if any(_DURATION in getattr(part, "__metadata__", field.metadata) for part in parts):
        return "DURATION"
    return _metavar_of(bare_type(field.annotation))


def _metavar_of(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"{_metavar_of(bare_type(get_args(kind)[0]))},…"
    if get_origin(kind) is dict:
        return "KEY=VALUE,…"
    if choices := _choices(kind):
        joined = "|".join(choices)
        return joined if len(joined) <= _MAX_METAVAR_WIDTH else "NAME"
    return _METAVARS.get(kind, "TEXT")


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(choice.value) for choice in kind]
    return []


def _overflow_choices(field: FieldInfo) -> str:
    """Return a field's choices if they are too long for its metavar."""
    choices = _choices(bare_type(field.annotation))
    return ", ".join(choices) if len("|".join(choices)) > _MAX_METAVAR_WIDTH else ""


def _default_text(field: FieldInfo) -> str:
    """Return the default as shown in the help; empty for no default and for flags that are off."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, Path) and value.is_relative_to(_PACKAGE):
        return ""  # part of the installation, which the description names
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in value.items())
    return str(value.value if isinstance(value, enum.Enum) else value)
