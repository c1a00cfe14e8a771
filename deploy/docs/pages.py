"""Pages of the documentation site that are generated from the code: as Markdown, by their paths."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

import synergai
from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from profiler.measuring.profiler_settings import ProfilerSettings
from synergai import errors
from synergai.cli.main import APPLICATIONS
from synergai.runtime.settings import options_of
from synergai.wire.status import CODES, HTTP_STATUSES
from worker_agent.agent_settings import AgentSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from synergai.runtime.settings import Settings

ROOT: Final = Path(__file__).parents[2]
OPENAPI: Final = ROOT / "gateway" / "calls" / "http" / "openapi.json"
SDK: Final = {
    "Clients": ("Client", "SyncClient", "QueryOptions", "JobOptions"),
    "Results and engines": ("InferResult", "Engine", "TensorSpec", "Configuration"),
    "Jobs": ("JobHandle", "SyncJobHandle", "JobStatus", "JobSpec", "JobState", "Execution"),
    "Jobs over your own data": ("NamedInput", "JobResult", "read_results"),
    "Fleet and versions": ("WorkerStatus", "WorkerState", "VersionPolicy", "VersionFigures"),
}
"""The public names but the errors, by section."""
_MODULES: Final[dict[str, str]] = synergai._MODULES  # noqa: SLF001  # they are imported late
"""Modules that define the public names."""
_PROGRAMS: Final[dict[str, type[Settings]]] = {
    "gateway": GatewaySettings,
    "serve": ServeSettings,
    "agent": AgentSettings,
    "profile": ProfilerSettings,
}


def pages() -> dict[str, str]:
    """Return the generated pages by their paths in the site."""
    commands = {f"reference/commands/{name}.md": _command_page(name) for name in APPLICATIONS}
    return {
        "reference/sdk.md": "\n".join(_sdk()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/commands.md": "\n".join(_commands()),
        **commands,
        "reference/settings.md": "\n".join(_settings()),
        "reference/rest.md": "\n".join(_rest(json.loads(OPENAPI.read_text()))),
    }


def error_names() -> list[str]:
    """Return the public names of errors, the base class first."""
    names = [name for name in _MODULES if hasattr(errors, name)]
    return sorted(names, key=lambda name: (name != "SynergaiError", name))


# --- SDK and errors ---------------------------------------------------------------------------


def _sdk() -> Iterator[str]:
    yield "# Python SDK\n"
    yield "Everything here is imported from `synergai`."
    yield "Times are in seconds, and instants are aware of UTC."
    yield "Shapes are lists of sizes, with -1 where any size fits, and arrays are `numpy.ndarray`."
    yield "Besides the errors that a method names, every call may raise `Unavailable`,"
    yield "`DeadlineExceeded` and the `SynergaiError` of a caller who may not do this:"
    yield "see [errors](errors.md).\n"
    for heading, names in SDK.items():
        yield f"## {heading}\n"
        for name in names:
            yield _object(name)


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield "All errors are imported from `synergai`. The message says what is wrong, where, and"
    yield "what to do. [Status codes](limits.md#status-codes) has those that clients meet.\n"
    yield "| error | gRPC | HTTP |\n|---|---|---|"
    for error, code in CODES.items():
        if error.__name__ in _MODULES:
            yield f"| `{error.__name__}` | {code.name} | {int(HTTP_STATUSES[code])} |"
    yield ""
    for name in error_names():
        yield _object(name)


def _object(name: str) -> str:
    """Return the directive that documents a public name where it is defined."""
    directive = f"### {name}\n\n::: {_MODULES[name]}.{name}\n"
    if name.startswith("Sync"):  # their methods wrap those of the class without this prefix
        asynchronous = name.removeprefix("Sync")
        directive += (
            "    options: {members: false}\n\n"
            f"It has the methods of [{asynchronous}](#{asynchronous.lower()}), without `await`.\n"
        )
    return directive


# --- commands and settings --------------------------------------------------------------------


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "| command | what it does |\n|---|---|"
    for name, application in APPLICATIONS.items():
        yield f"| [`synergai {name}`](commands/{name}.md) | {application.summary} |"


def _command_page(name: str) -> str:
    module, _, attribute = APPLICATIONS[name].entry_point.partition(":")
    command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
    return "\n".join(_describe_command(f"synergai {name}", command, "#"))


# The types of typer's commands are private, and differ between its versions.
def _describe_command(name: str, command: Any, level: str) -> Iterator[str]:
    yield f"{level} {name}\n"
    subcommands = getattr(command, "commands", {})
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    shown = [each for each in shown if "completion" not in each.name and each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    words = [name, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)]
    if subcommands:
        words.append("[COMMAND]")
    yield f"```\n{' '.join(words)}\n```\n"
    for paragraph in (command.help or "").split("\n\n"):
        yield f"{_markdown(' '.join(paragraph.split()))}\n"
    if command.epilog:
        yield f"{_markdown(command.epilog)}\n"
    if shown:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{_name(each)}` | {_cell(each.help or '')} |" for each in shown)
        yield ""
    for subcommand, each in subcommands.items():
        yield from _describe_command(f"{name} {subcommand}", each, f"{level}#"[:3])


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _metavar(parameter)
    value = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or 'VALUE'}"
    return ", ".join((*parameter.opts, *parameter.secondary_opts)) + value


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "Every setting is an option of the command, an environment variable, and for programs"
    yield "with `--config FILE` a key of this TOML file. The command line takes precedence over"
    yield "the environment, and this over the file. Times take forms such as `90` or `1h30m`.\n"
    for program, settings in _PROGRAMS.items():
        yield f"## synergai {program}\n"
        if settings.has_file:
            yield "The keys of the file are the names of the options with underscores.\n"
        yield "| option, variable | default | meaning |\n|---|---|---|"
        for name, option in options_of(settings).items():
            if option.description:
                variable = settings.env_var(name)
                text = _cell(option.description)
                yield f"| `--{option.flag}` `{variable}` | {_default(option.default)} | {text} |"
        yield ""


def _default(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value in (None, "", (), {}):
        return ""
    texts = value if isinstance(value, tuple) else (value,)
    return f"`{_without_home(','.join(str(getattr(each, 'value', each)) for each in texts))}`"


def _cell(text: str) -> str:
    return _markdown(" ".join(text.split())).replace("|", "\\|")


def _markdown(text: str) -> str:
    """Return Markdown for text with the markup of the command line's help."""
    text = re.sub(r"\[bold\](.*?)\[/bold\]", r"`\1`", text)
    text = re.sub(r"\\\[(.*?)\]", r"(\1)", re.sub(r"\[/?\w+\]", "", text))
    text = re.sub(r"(?<![`\w/])(--[a-z][\w-]*)", r"`\1`", text) if "`" not in text else text
    return _without_home(text).replace("<", "&lt;")


def _without_home(text: str) -> str:
    return text.replace(str(Path.home()), "~")


# --- REST -------------------------------------------------------------------------------------


def _rest(document: Mapping[str, Any]) -> Iterator[str]:
    yield "# REST\n"
    yield f"{document['info']['description']}"
    yield "The gateway serves this description as `/openapi.json`."
    yield "[Protocol](protocol.md#rest) explains the calls.\n"
    yield f"{document['components']['responses']['Error']['description']}\n"
    for path, item in document["paths"].items():
        for method, call in item.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{call['summary']}.\n"
            if "description" in call:
                yield f"{call['description']}\n"
            yield from _parts(document, call)
    for name, schema in document["components"]["schemas"].items():
        yield f"## {name}\n"
        yield f"{schema.get('description', '')}\n"
        if properties := schema.get("properties"):
            yield "| key | type | meaning |\n|---|---|---|"
        for key, value in (properties or {}).items():
            yield f"| `{key}` | {_type(value)} | {value.get('description', '')} |"
        yield ""


def _parts(document: Mapping[str, Any], call: Mapping[str, Any]) -> Iterator[str]:
    yield "| part | content |\n|---|---|"
    for parameter in call.get("parameters", ()):
        each = _resolve(document, parameter)
        yield f"| {each['in']} `{each['name']}` | {each.get('description', '')} |"
    if body := call.get("requestBody"):
        for kind, content in _resolve(document, body)["content"].items():
            yield f"| body `{kind}` | {_type(content.get('schema', {}))} |"
    for status, response in call["responses"].items():
        if status == "default":  # the same for all
            continue
        each = _resolve(document, response)
        types = (_type(content.get("schema", {})) for content in each.get("content", {}).values())
        named = [kind for kind in types if kind.startswith("[")]
        yield f"| {status} | {' '.join([each['description'], *named])} |"
    yield ""


def _resolve(document: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    found = part
    for key in part.get("$ref", "#").split("/")[1:]:
        found = document[key] if found is part else found[key]
    return found


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value as a link to its schema, or its name."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    kinds = schema.get("type", "")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)
