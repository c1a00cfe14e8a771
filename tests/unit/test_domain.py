"""Configurations, names, job specifications and errors."""

import math

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergai import errors
from synergai.domain import Configuration, EngineName, Session
from synergai.errors import InvalidInput
from synergai.jobs import MAX_PRIORITY, JobSpec
from synergai.names import (
    parse_version,
    split_version,
    validate_engine,
    validate_name,
    validate_version,
    versioned,
)
from synergai.wire import status
from tests.malformed_versions import MALFORMED_VERSIONS

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


def test_session_reads_as_its_engine_and_configuration() -> None:
    assert (
        str(Session(EngineName("echo"), Configuration(2, "MAXN")))
        == "echo with threads=2,mode=MAXN"
    )


@given(st.builds(Configuration, st.integers(0, 1024), names, *[names | st.just("")] * 2))
def test_configuration_reads_what_it_writes(configuration: Configuration) -> None:
    assert Configuration.parse(str(configuration)) == configuration


@pytest.mark.parametrize(
    "text",
    ["", "threads", "threads=", "threads=x", "cores=2", "threads=-1", "threads=" + "1" * 5000],
)
def test_malformed_configuration_is_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="threads"):
        Configuration.parse(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "-x", "x" * 129, "a\n"])
def test_unsafe_name_is_rejected(name: str) -> None:
    with pytest.raises(errors.InvalidInput):
        validate_name(name, "engine name")


def test_error_about_a_long_name_is_short() -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        validate_name("x" * 1_000_000, "engine name")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": 0},
        {"queries": -1},
        {"qos": 0.0},
        {"qos": -1.0},
        {"qos": math.nan},
        {"priority": MAX_PRIORITY + 1},
        {"tenant": "a/b"},
        {"upload_id": "../up"},
        {"max_failures": 1},
        {"upload_id": "up", "max_failures": -1},
        {"variant": "a/b"},
        {"min_accuracy": math.nan},
        {"min_accuracy": -0.1},
        {"min_accuracy": 1.1},
    ],
)
def test_job_specification_out_of_range_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidInput):
        JobSpec(engine=EngineName("digits"), **wrong)  # type: ignore[arg-type]  # wrong on purpose


def all_errors(base: type[errors.SynergaiError]) -> set[type[errors.SynergaiError]]:
    return {base}.union(*(all_errors(sub) for sub in base.__subclasses__()))


def test_every_domain_error_has_a_status_code_of_its_own() -> None:
    for cls in all_errors(errors.SynergaiError) - {errors.SynergaiError}:
        assert any(base in status.SERVER_CODES for base in cls.__mro__), cls


@pytest.mark.parametrize("cls", list(status.CODES))
def test_error_keeps_class_and_message_over_the_wire(
    cls: type[errors.SynergaiError],
) -> None:
    error = status.error_from_status(status.CODES[cls], "what was wrong")
    assert type(error) is cls
    assert str(error) == "what was wrong"


def test_status_without_a_domain_error_becomes_the_base_class() -> None:
    assert type(status.error_from_status(grpc.StatusCode.DATA_LOSS, "x")) is errors.SynergaiError


@pytest.mark.parametrize(
    ("text", "engine", "parts"),
    [
        ("echo", "echo", ("echo", "1")),
        ("echo/1", "echo", ("echo", "1")),
        ("echo/2", "echo/2", ("echo", "2")),
        (f"echo/{'9' * 18}", f"echo/{'9' * 18}", ("echo", "9" * 18)),
    ],
)
def test_engine_is_a_name_and_a_version(text: str, engine: str, parts: tuple[str, str]) -> None:
    found = validate_engine(text)
    assert found == engine
    assert split_version(found) == parts
    assert versioned(*parts) == found


@pytest.mark.parametrize(
    "text", ["", "0", "01", "-1", "+1", "1.0", "two", "\u0661", "9" * 19, "1\n"]
)
def test_version_is_a_number_from_1_without_leading_zeros(text: str) -> None:
    with pytest.raises(InvalidInput, match="use a number from 1"):
        validate_version(text)
    with pytest.raises(InvalidInput, match="a number from 1"):
        validate_engine(f"echo/{text}")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("", "")),
        ("2", ("2", "")),
        ("2.int8", ("2", "int8")),
        ("10.p25-int8", ("10", "p25-int8")),
    ],
)
def test_version_may_name_a_variant(text: str, parts: tuple[str, str]) -> None:
    assert parse_version(text) == parts


@pytest.mark.parametrize("text", MALFORMED_VERSIONS)
def test_malformed_version_with_a_variant_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a version: write its number"):
        parse_version(text)
