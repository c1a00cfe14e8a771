"""Request parameters and their validation."""

import pytest

from gateway.calls.requests.parameters import RequestOptions, parse_options
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import InferParameter
from synergai.wire.parameters import tenant_from_metadata


def parameters(**values: float | str) -> dict[str, InferParameter]:
    return {name: parameter(value) for name, value in values.items()}


def parameter(value: float | str) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
        case str():
            return InferParameter(string_param=value)


@pytest.mark.parametrize(("given", "ours"), [(0, 0), (1, 9), (9, 1), (10, 0), (2**40, 0)])
def test_protocol_priorities_map_to_ours_in_reverse(given: int, ours: int) -> None:
    assert parse_options(parameters(priority=given)) == RequestOptions(priority=ours)


def test_tenant_and_timings_are_parsed() -> None:
    options = parse_options(parameters(synergai_tenant="lab", synergai_timings=True))
    assert options == RequestOptions(tenant="lab", timings=True)


@pytest.mark.parametrize("value", [0, 1, "1"])
def test_floor_may_be_a_whole_number(value: int | str) -> None:
    assert parse_options(parameters(synergai_min_accuracy=value)).min_accuracy == float(value)


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, float("nan"), float("inf"), "nan", "-1", "high", "", "0" * 100, True]
)
def test_floor_that_is_no_share_is_refused(value: float | str) -> None:
    with pytest.raises(InvalidInput, match="synergai_min_accuracy"):
        parse_options(parameters(synergai_min_accuracy=value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": -1},
        {"priority": "first"},
        {"timeout": 0.5},
        {"timeout": -1},
        {"synergai_tenant": 7},
        {"synergai_tenant": "two words"},
        {"synergai_timings": 1},
    ],
)
def test_invalid_parameter_is_rejected_by_name(wrong: dict[str, float | str]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidInput, match=name.removeprefix("synergai_")):
        parse_options(parameters(**wrong))


def test_metadata_names_the_tenant_of_a_call() -> None:
    assert tenant_from_metadata((("user-agent", "x"), ("synergai-tenant", "lab"))) == "lab"
    assert tenant_from_metadata((("user-agent", "x"),)) == ""
    with pytest.raises(InvalidInput):
        tenant_from_metadata((("synergai-tenant", "two words"),))


def test_unsigned_integers_are_accepted() -> None:
    assert parse_options({"priority": InferParameter(uint64_param=2)}).priority == 8


def test_unknown_parameters_are_ignored() -> None:
    assert parse_options(parameters(content_type="np", weight=0.5)) == RequestOptions()
