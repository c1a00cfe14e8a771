"""Options of the command that submits jobs, in groups."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path  # typer reads the annotations of commands
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

from synergai.cli.options import EngineVersion, MinAccuracy, Priority, parse_duration, parse_instant
from synergai.errors import InvalidSettings

if TYPE_CHECKING:
    from synergai.client.requests import JobOptions

INPUTS_HELP: Final = "A file, directory, pattern or manifest of inputs, instead of --queries"

Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", metavar="PATH", help=f"{INPUTS_HELP}; repeatable."),
]
Header = Annotated[
    Literal["yes", "no"] | None,
    typer.Option(
        metavar="yes|no",
        help="Whether the first row of CSV files names the columns. Default: if it names the "
        "engine's inputs; in doubt, the file is refused.",
    ),
]
Encoding = Annotated[
    str, typer.Option(metavar="NAME", help="Encoding of CSV, JSON-lines and manifest files.")
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
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="TIME", help="Complete by 18:00, or a date and time, instead of --qos."
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
    header: Header = None
    encoding: Encoding = "utf-8"
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
    by: By = None
    priority: Priority = 0
    version: EngineVersion = ""
    min_accuracy: MinAccuracy = 0.0
    tenant: Tenant = ""
    key: Key = ""

    def options(self) -> JobOptions:
        """Return the options of the client's call."""
        if self.qos is not None and self.by is not None:
            raise InvalidSettings("give either --qos or --by")
        return {
            "qos": None if self.qos is None else parse_duration(self.qos, "--qos"),
            "priority": self.priority,
            "tenant": self.tenant,
            "version": self.version,
            "min_accuracy": self.min_accuracy,
        }

    def instant(self) -> datetime | None:
        """Return the instant of `--by`, which must not have passed."""
        return None if self.by is None else parse_instant(self.by, "--by", datetime.now(UTC))
