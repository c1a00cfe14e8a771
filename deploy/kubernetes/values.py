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
_PROGRAMS: Final[dict[str, type[Settings]]] = {
    "gatewayOptions": GatewaySettings,
    "agentOptions": AgentSettings,
}
"""Programs by the definition of their options in the schema."""
_SET_BY_TEMPLATES: Final = {
    "gatewayOptions": {
        *("listen", "hub", "work_port", "http", "probes", "state", "journal", "insecure"),
        *("tls_cert", "tls_key", "tls_client_ca", "access"),
        *("drain_s", "worker_wait_s", "max_request_bytes"),
    },
    "agentOptions": {
        *("gateway", "models", "worker_id", "worker_class", "probes", "state"),
        *("tls_ca", "tls_cert", "tls_key", "drain_s"),
    },
}
_HEAD: Final = """\
# Values of the chart

`python -m deploy.kubernetes.values` writes this page from `values.yaml` and `values.schema.json`.

| value | type | default | meaning |
|---|---|---|---|
"""
_LINE: Final = re.compile(r"( *)([\w.]+):(?: (.*))?")


def options_schema(program: str) -> dict[str, object]:
    """Return the schema of the options that values may give to a program."""
    properties = {
        option.flag: _schema_of(option)
        for name, option in options_of(_PROGRAMS[program]).items()
        if option.description and name not in _SET_BY_TEMPLATES[program]
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema_of(option: Option) -> dict[str, object]:
    """Return the schema of an option. Durations, sizes and lists are left to the program."""
    if option.bare_type is bool:
        return {"const": True}
    if choices := choices_of(option.bare_type):
        return {"enum": choices}
    if option.bare_type is int and not option.metavar:
        limits = [mark for mark in option.type.__metadata__ if isinstance(mark, Meta)]
        least = [mark.ge for mark in limits if mark.ge is not None]
        return {"type": "integer"} | ({"minimum": least[0]} if least else {})
    return {"type": ["string", "number"]}


def readme(values: str, schema: dict[str, Any]) -> str:
    """Return the page of all values, from the comments in `values` and the types in `schema`."""
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
            continue
        if found := _LINE.fullmatch(line):
            indent, key, default = len(found[1]), found[2], found[3] or ""
            path = [*(parent for parent in path if parent[0] < indent), (indent, key)]
            yield ".".join(name for _, name in path), default, " ".join(comment)
        comment = []


def _type_in(schema: dict[str, Any], path: str) -> str:
    found = schema
    for key in path.split("."):
        found = found["properties"][key]
        if name := found.get("$ref", "").rpartition("/")[2]:
            found = schema["definitions"][name]
    if choices := found.get("enum"):
        return ", ".join(f"`{choice}`" for choice in choices)
    kind: str | list[str] = found["type"]
    return kind if isinstance(kind, str) else " or ".join(kind)


def updated(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the options that the programs have."""
    options = {program: options_schema(program) for program in _PROGRAMS}
    return schema | {"definitions": schema["definitions"] | options}


def main() -> None:
    """Write the files."""
    path = CHART / "values.schema.json"
    schema = updated(json.loads(path.read_text()))
    path.write_text(json.dumps(schema, indent=2) + "\n")
    (CHART / "README.md").write_text(readme((CHART / "values.yaml").read_text(), schema))


if __name__ == "__main__":
    main()
