"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from synergai.client.target import TARGET_VARIABLE
from synergai.errors import InvalidInput, InvalidSettings
from synergai.runtime import setting_types
from synergai.runtime.paths import default_dictionary

if TYPE_CHECKING:
    from synergai.client.requests import JobOptions


Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="HOST:PORT",
        envvar=TARGET_VARIABLE,
        show_envvar=True,
        help="Address of the gateway, several with one database separated by commas.",
    ),
]
DEFAULT_MODELS: Final = Path("models")
Models = Annotated[Path, typer.Option("--models", metavar="DIR", help="The model directory.")]
DEFAULT_DICTIONARY: Final = default_dictionary()
Dictionary = Annotated[
    Path,
    typer.Option(
        "--dictionary",
        metavar="FILE",
        help="The dictionary, a .db file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Priority = Annotated[int, typer.Option(metavar="INTEGER", help="0 (default) to 9 (most urgent).")]
MinAccuracy = Annotated[
    float,
    typer.Option(
        metavar="SHARE", help="Lowest accuracy, 0 to 1, of the variants that may be used."
    ),
]


def parse_duration(text: str, option: str) -> float:
    """Return the seconds of a duration such as ``90``, ``2h`` or ``1h30m``; it may be negative."""
    try:
        return setting_types.parse_duration(text)
    except InvalidInput as error:
        raise InvalidSettings(f"{option}: {error}") from None


INPUTS_HELP: Final = "A file, directory or pattern of inputs, instead of --queries"

Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", metavar="PATH", help=f"{INPUTS_HELP}; repeatable."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Where to write the results. Default: they stay at the gateway until fetched.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OUTPUT",
        help="Only this output, such as classes or boxes; repeatable. Default: all tensors.",
    ),
]
MaxFailures = Annotated[
    int | None,
    typer.Option(min=0, help="Inputs that may fail before the job does. Default: all."),
]
Qos = Annotated[
    str | None,
    typer.Option(
        "--qos",
        metavar="DURATION",
        help="Time to completion: seconds, or 250ms, 90s, 30m or 2h. Default: no deadline.",
    ),
]
Tenant = Annotated[str, typer.Option(help="Tenant that the job is accounted to.")]
Key = Annotated[
    str,
    typer.Option(
        help="Idempotency key; submitting again with it returns the same job. Default: with"
        " inputs, it follows from the command and its files."
    ),
]


class OwnInputs(NamedTuple):
    """Options of a job over inputs of its own."""

    inputs: Inputs = None
    output: Output = None
    only: Only = None
    max_failures: MaxFailures = None

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        values, defaults = self._asdict(), self._field_defaults
        return [name for name in values if values[name] not in (defaults[name], [])]


class JobTerms(NamedTuple):
    """Options of every job."""

    qos: Qos = None
    priority: Priority = 0
    min_accuracy: MinAccuracy = 0.0
    tenant: Tenant = ""
    key: Key = ""

    def options(self) -> JobOptions:
        """Return the options of the client's call."""
        return {
            "qos": None if self.qos is None else parse_duration(self.qos, "--qos"),
            "priority": self.priority,
            "tenant": self.tenant,
            "min_accuracy": self.min_accuracy,
        }
