"""Regions of system shared memory, and requests with tensors in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from gateway.requests.shared_memory import MAX_REGIONS, Owner, Region, SharedMemoryRegions, Span
from gateway.requests.shared_tensors import SharedMemoryRequest, SharedTensors
from synergai.errors import Conflict, InvalidInput, NotFound, Overloaded
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.protocol.request_codec import RequestDecoder, names_regions
from synergai.protocol.rpc import RawRequest

if TYPE_CHECKING:
    from synergai.protocol.request_codec import Buffer, RequestHeader

    Tensor: TypeAlias = (
        ModelInferRequest.InferInputTensor | ModelInferRequest.InferRequestedOutputTensor
    )

MAX_BYTES = 1000
LAB, OTHER = Owner("lab", os.getuid()), Owner("other", os.getuid())
REGION = Region("r", "/memory", 8, 16)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "memory").write_bytes(bytes(range(32)))
    return folder


@pytest.fixture
def regions(directory: Path) -> SharedMemoryRegions:
    regions = SharedMemoryRegions(MAX_BYTES, directory)
    regions.register(LAB, REGION)
    return regions


# --- regions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/..", "../shm/memory", "//memory", "a/b", "/a/b", ".hidden", "a\0", "é"]
)
def test_key_cannot_leave_the_directory(regions: SharedMemoryRegions, key: str) -> None:
    with pytest.raises(InvalidInput, match="key of shared memory"):
        regions.register(LAB, Region("s", key, 0, 1))


@pytest.mark.parametrize("name", ["", "a/b", " ", "x" * 129])
def test_name_of_a_region_is_checked(regions: SharedMemoryRegions, name: str) -> None:
    with pytest.raises(InvalidInput, match="region name"):
        regions.register(LAB, Region(name, "memory", 0, 1))


def test_link_pipe_folder_and_missing_file_are_refused(
    regions: SharedMemoryRegions, directory: Path
) -> None:
    (directory / "link").symlink_to(directory / "memory")
    os.mkfifo(directory / "pipe")
    (directory / "folder").mkdir()
    for key in ("link", "pipe", "folder", "absent"):
        with pytest.raises(InvalidInput, match="cannot read and write"):
            regions.register(LAB, Region("s", key, 0, 1))


@pytest.mark.parametrize(("offset", "size"), [(0, 33), (32, 1), (2**64 - 1, 1), (0, 2**64 - 1)])
def test_region_lies_within_its_file(regions: SharedMemoryRegions, offset: int, size: int) -> None:
    with pytest.raises(InvalidInput):
        regions.register(LAB, Region("s", "memory", offset, size))
    assert [each.name for each in regions.status(LAB, "")] == ["r"]


@pytest.mark.parametrize(("offset", "size"), [(0, 17), (16, 1), (2**64 - 1, 2**64 - 1)])
def test_part_lies_within_its_region(regions: SharedMemoryRegions, offset: int, size: int) -> None:
    with pytest.raises(InvalidInput, match="exceed region 'r'"):
        regions.read(LAB, Span("r", offset, size))
    with pytest.raises(InvalidInput, match="exceed region 'r'"):
        regions.write(LAB, Span("r", offset, size), b"")


def test_file_that_has_shrunk_is_an_error(regions: SharedMemoryRegions, directory: Path) -> None:
    os.truncate(directory / "memory", 20)
    with pytest.raises(InvalidInput, match="too short"):
        regions.read(LAB, Span("r", 0, 1))
    with pytest.raises(InvalidInput, match="too short"):
        regions.write(LAB, Span("r", 0, 1), b"a")
    assert (directory / "memory").stat().st_size == 20


def test_region_whose_file_became_a_link_is_not_followed(
    regions: SharedMemoryRegions, directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(bytes(32))
    (directory / "memory").unlink()
    (directory / "memory").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput, match="cannot read and write"):
        regions.read(LAB, Span("r", 0, 1))


def test_parts_are_read_and_written_in_place(regions: SharedMemoryRegions, directory: Path) -> None:
    assert regions.read(LAB, Span("r", 2, 3)) == bytes((10, 11, 12))
    regions.write(LAB, Span("r", 2, 3), b"ab")
    expected = bytes(range(10)) + b"ab" + bytes(range(12, 32))
    assert (directory / "memory").read_bytes() == expected
    with pytest.raises(InvalidInput, match="the tensor has 4 bytes"):
        regions.write(LAB, Span("r", 2, 3), b"abcd")
    assert (directory / "memory").read_bytes() == expected


def test_tenants_do_not_see_the_regions_of_others(regions: SharedMemoryRegions) -> None:
    assert not regions.status(OTHER, "")
    for use in (
        lambda: regions.status(OTHER, "r"),
        lambda: regions.read(OTHER, Span("r", 0, 1)),
        lambda: regions.write(OTHER, Span("r", 0, 1), b"a"),
    ):
        with pytest.raises(NotFound):
            use()
    regions.unregister(OTHER, "r")
    regions.unregister(OTHER, "")
    assert regions.status(LAB, "r") == [REGION]


def test_names_are_unique_until_they_are_removed(regions: SharedMemoryRegions) -> None:
    with pytest.raises(Conflict):
        regions.register(LAB, REGION)
    regions.register(OTHER, REGION)
    regions.unregister(LAB, "absent")
    regions.unregister(LAB, "r")
    assert not regions.status(LAB, "")
    regions.register(LAB, REGION)
    regions.unregister(LAB, "")
    assert not regions.status(LAB, "")
    assert regions.status(OTHER, "") == [REGION]


def test_regions_of_a_tenant_are_limited(regions: SharedMemoryRegions) -> None:
    for number in range(1, MAX_REGIONS):
        regions.register(LAB, Region(f"r{number}", "memory", 0, 1))
    with pytest.raises(Overloaded, match="unregister some"):
        regions.register(LAB, Region("further", "memory", 0, 1))
    regions.register(OTHER, REGION)


# --- requests -----------------------------------------------------------------------------


def in_region(tensor: Tensor, offset: int = 0, size: int = 8, region: str = "r") -> None:
    parameters = tensor.parameters
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        parameters["shared_memory_offset"].int64_param = offset


def message() -> ModelInferRequest:
    """Return a request with inputs a, in a region, and b, and outputs y, in a region, and z."""
    request = ModelInferRequest(model_name="e")
    in_region(request.inputs.add(name="a", datatype="FP32", shape=[2]))
    request.inputs.add(name="b", datatype="FP32", shape=[1])
    request.raw_input_contents.append(b"sent")
    in_region(request.outputs.add(name="y"), offset=8)
    request.outputs.add(name="z")
    return request


def received(request: ModelInferRequest) -> RawRequest[RequestHeader]:
    data = request.SerializeToString()
    return RawRequest(data, RequestDecoder().parse(data))


def test_inputs_are_copied_and_references_removed(regions: SharedMemoryRegions) -> None:
    raw = received(message())
    tensors = SharedTensors(regions, LAB, raw)
    forwarded = ModelInferRequest.FromString(tensors.request.data)
    assert list(forwarded.raw_input_contents) == [bytes(range(8, 16)), b"sent"]
    assert list(tensors.request.parsed.raw) == [bytes(range(8, 16)), b"sent"]
    assert not any(each.parameters for each in forwarded.inputs)
    assert not any(each.parameters for each in forwarded.outputs)
    assert not names_regions(tensors.request.parsed)
    assert raw.parsed.message.inputs[0].parameters  # may be shared


def test_outputs_are_written_and_replaced_by_references(
    regions: SharedMemoryRegions, directory: Path
) -> None:
    response = ModelInferResponse(raw_output_contents=[b"to y", b"to z"])
    for name in "yz":
        response.outputs.add(name=name, datatype="FP32", shape=[1])
    tensors = SharedTensors(regions, LAB, received(message()))
    answer = ModelInferResponse.FromString(tensors.take_outputs(response.SerializeToString()))
    assert list(answer.raw_output_contents) == [b"", b"to z"]
    assert (directory / "memory").read_bytes()[16:20] == b"to y"
    told = answer.outputs[0].parameters
    assert told["shared_memory_region"].string_param == "r"
    assert told["shared_memory_byte_size"].int64_param == 4
    assert told["shared_memory_offset"].int64_param == 8
    assert not answer.outputs[1].parameters


def test_output_of_a_region_that_went_is_not_written(
    regions: SharedMemoryRegions, directory: Path
) -> None:
    response = ModelInferResponse(raw_output_contents=[b"to y"])
    response.outputs.add(name="y", datatype="FP32", shape=[1])
    tensors = SharedTensors(regions, LAB, received(message()))
    regions.unregister(LAB, "r")
    with pytest.raises(NotFound):
        tensors.take_outputs(response.SerializeToString())
    assert (directory / "memory").read_bytes() == bytes(range(32))


def test_requests_of_other_tenants_cannot_use_a_region(regions: SharedMemoryRegions) -> None:
    with pytest.raises(NotFound):
        SharedTensors(regions, OTHER, received(message()))


def test_memory_of_another_user_is_refused(regions: SharedMemoryRegions) -> None:
    other = Owner("lab", os.getuid() + 1)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        regions.register(other, REGION)
    with pytest.raises(NotFound):
        regions.read(other, Span("r", 0, 1))


def test_malformed_references_are_refused(regions: SharedMemoryRegions) -> None:
    without_size, negative, no_text, contents, unknown, large = (message() for _ in range(6))
    del without_size.inputs[0].parameters["shared_memory_byte_size"]
    in_region(negative.inputs[0], offset=-1)
    no_text.inputs[0].parameters["shared_memory_region"].int64_param = 1
    contents.raw_input_contents.append(b"one more")
    in_region(unknown.outputs[0], region="absent")
    in_region(large.inputs[0], size=MAX_BYTES)
    for request, error, text in (
        (without_size, InvalidInput, "without shared_memory_byte_size"),
        (negative, InvalidInput, "must be 0 or more"),
        (no_text, NotFound, "no shared memory region"),
        (contents, InvalidInput, "2 entries for 1 inputs"),
        (unknown, NotFound, "'absent'"),
        (large, InvalidInput, "the limit is 1,000"),
    ):
        with pytest.raises(error, match=text):
            SharedTensors(regions, LAB, received(request))


def test_requests_that_name_regions_have_no_template() -> None:
    request = ModelInferRequest(model_name="e", raw_input_contents=[b"sent"])
    request.inputs.add(name="b", datatype="FP32", shape=[1])
    decoder = RequestDecoder()
    for named in (False, True):
        if named:
            in_region(request.outputs.add(name="y"))
        data = request.SerializeToString()
        headers = [decoder.parse(data) for _ in range(3)]
        assert [names_regions(header) for header in headers] == [named] * 3
        assert (headers[2].template is None) is named


class Begun:
    """A request that was begun."""

    def __init__(self) -> None:
        self.result: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True


@pytest.mark.parametrize("started", [False, True])
async def test_abandoning_cancels_the_request(regions: SharedMemoryRegions, started: bool) -> None:
    begun = Begun()
    request = SharedMemoryRequest(begun, SharedTensors(regions, LAB, received(message())))
    if started:
        await asyncio.sleep(0)
    request.abandon()
    await asyncio.wait([request.result])
    assert begun.abandoned
    assert request.result.cancelled()
