"""``synergai gateway check``: the files in a gateway's state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import typer

from gateway.enrolment_cli import State  # noqa: TC001 - typer reads the annotations of commands
from synergai.cli.options import AsJson
from synergai.cli.output import print_json, print_table
from synergai.errors import NotFound, SynergaiError
from synergai.runtime.paths import dictionary_path, gateway_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class _Checked(NamedTuple):
    """State of a file: its path, and its fault, empty if it has none."""

    path: Path
    fault: str


def check(state: State = None, as_json: AsJson = False) -> None:
    """Check the journal, the enrolments, the version policies and the dictionary.

    The gateway may be running. Exits with 1 if one of them is damaged. The command
    [bold]synergai dictionary check[/bold] checks a dictionary elsewhere.
    """
    directory = state or gateway_state()
    checked = list(_check(directory))
    if not checked:
        raise NotFound(
            f"there are no files of a gateway in {directory}; name its directory with --state"
        )
    if as_json:
        print_json([{"path": str(each.path), "fault": each.fault} for each in checked])
    else:
        columns = ("file", "state")
        print_table(
            columns,
            [
                (str(each.path), f"damaged: {each.fault}" if each.fault else "intact")
                for each in checked
            ],
        )
    if any(each.fault for each in checked):
        raise typer.Exit(1)


def _check(state: Path) -> Iterator[_Checked]:
    from gateway.access.enrolments import FILE, EnrolmentStore
    from gateway.fleet.version_policy import POLICY_FILE, PolicyFile
    from gateway.journal.archive import check as check_journal
    from synergai.profiles.files import check_dictionary

    try:
        journal = check_journal(state)
    except NotFound:
        pass
    else:
        yield _Checked(journal.path, journal.fault)
    for name, read in (
        (FILE, EnrolmentStore(state).workers),
        (POLICY_FILE, PolicyFile(state).read),
    ):
        if (state / name).exists():
            yield _Checked(state / name, _fault(read))
    dictionary = dictionary_path(state)
    if dictionary.exists():
        yield _Checked(dictionary, check_dictionary(dictionary).fault)


def _fault(read: Callable[[], object]) -> str:
    """Return why a state file cannot be read; empty if it can."""
    from synergai.runtime.state_file import StateDamaged

    try:
        read()
    except StateDamaged as error:
        return error.fault
    except SynergaiError as error:
        return str(error)
    return ""
