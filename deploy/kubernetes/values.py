"""Writes what follows from the chart's values: README.md, and the options in values.schema.json.

python -m deploy.kubernetes.values
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Meta

from gateway.gateway_settings import GatewaySettings
from synergai.runtime.settings import Option, Settings, choices_of, options_of
from worker_agent.agent_settings import AgentSettings

CHART: Final = Path(__file__).parent / "chart"
SETTINGS: Final[dict[str, tuple[type[Settings], frozenset[str]]]] = {
    "gatewayOptions": (
        GatewaySettings,
        frozenset(
            "listen hub work_port http probes state journal drain_s worker_wait_s "
            "max_request_bytes tls_cert tls_key tls_client_ca access http_tls insecure".split()
        ),
    ),
    "agentOptions": (
        AgentSettings,
        frozenset(
            "gateway probes models worker_id worker_class state drain_s "
            "tls_ca tls_cert tls_key".split()
        ),
    ),
}
"""Programs by the definition of their options in the schema, and the settings that are values."""
_HEAD: Final = """\
# Values of the chart

`python -m deploy.kubernetes.values` writes this page from `values.yaml` and `values.schema.json`.

| value | type | default | meaning |
|---|---|---|---|
"""
_LINE: Final = re.compile(r"( *)([\w.]+):(?: (.*))?")


def option_schemas(name: str) -> dict[str, object]:
    """Return the schema of a program's options in the values."""
    settings, own = SETTINGS[name]
    options = options_of(settings).values()
    properties = {
        each.flag: _type_of(each) for each in options if each.description and each.name not in own
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _type_of(option: Option) -> dict[str, object]:
    """Return the type of an option; texts of durations, sizes and lists are left to the program."""
    if option.bare_type is bool:
        return {"const": True}
    if choices := choices_of(option.bare_type):
        return {"enum": choices}
    if option.bare_type is int and not option.metavar:
        limits = [each for each in option.type.__metadata__ if isinstance(each, Meta)]
        least = next((each.ge for each in limits if each.ge is not None), None)
        return {"type": "integer"} | ({} if least is None else {"minimum": least})
    return {"type": ["string", "number"]}


def readme(values: str, schema: dict[str, Any]) -> str:
    """Return the page of all values, with their comments in `values` and types in `schema`."""
    rows = [
        f"| `{path}` | {_type_in(schema, path)} | {f'`{default}`' if default else ''} | {text} |"
        for path, default, text in _values(values)
        if default or text
    ]
    return _HEAD + "\n".join(rows) + "\n"


def _values(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the path, the default and the comment of each value."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip("# "))
        elif found := _LINE.fullmatch(line):
            indent, key, default = len(found[1]), found[2], found[3] or ""
            path = [*(each for each in path if each[0] < indent), (indent, key)]
            yield ".".join(name for _, name in path), default, " ".join(comment).replace("|", "\\|")
            comment = []
        else:
            comment = []


def _type_in(schema: dict[str, Any], path: str) -> str:
    """Return the type of a value by its path."""
    found = schema
    for key in path.split("."):
        found = _resolve(schema, found["properties"][key])
    if choices := found.get("enum"):
        return ", ".join(f"`{each}`" for each in choices)
    kinds = found.get("type", "")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref", "")
    return schema["definitions"][reference.rpartition("/")[2]] if reference else part


def updated(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the options that the programs have."""
    return schema | {
        "definitions": schema["definitions"] | {n: option_schemas(n) for n in SETTINGS}
    }


def main() -> None:
    """Write the files."""
    path = CHART / "values.schema.json"
    schema = updated(json.loads(path.read_text()))
    path.write_text(json.dumps(schema, indent=2) + "\n")
    (CHART / "README.md").write_text(readme((CHART / "values.yaml").read_text(), schema))


if __name__ == "__main__":
    main()
