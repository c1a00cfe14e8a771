"""Our protocol files match those of tritonclient, which is loaded in a separate process."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

import pytest
from google.protobuf.descriptor import Descriptor

from gateway.grpc_server import UNSUPPORTED_METHODS
from synergai.oip import inference_pb2, model_config_pb2, repository_pb2, statistics_pb2

SCRIPT = Path(__file__).with_name("triton_numbers.py")
MODULES = (inference_pb2, model_config_pb2, repository_pb2, statistics_pb2)
OURS = {
    # KServe's, where Triton's messages are empty.
    "inference.RepositoryModelLoadResponse": {"model_name", "isLoaded"},
    "inference.RepositoryModelUnloadResponse": {"model_name", "isUnloaded"},
    # The Open Inference Protocol's, which Triton leaves out.
    "inference.ModelMetadataResponse": {"properties"},
    "inference.ModelMetadataResponse.PropertiesEntry": {"key", "value"},
    "inference.InferStatistics": {"rejected", "expired", "cancelled"},
}
"""Fields that Triton's messages lack."""


class TritonNumbers(TypedDict):
    """Number, type and repetition of the fields of Triton's messages, and its methods."""

    fields: dict[str, dict[str, list[int | bool]]]
    methods: list[str]


@pytest.fixture(scope="module")
def triton() -> TritonNumbers:
    process = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True
    )
    numbers: TritonNumbers = json.loads(process.stdout)
    return numbers


def messages(types: Iterable[Descriptor]) -> Iterator[Descriptor]:
    for message in types:
        yield message
        yield from messages(message.nested_types)


def test_shared_fields_have_tritons_numbers_and_types(triton: TritonNumbers) -> None:
    compared = 0
    for module in MODULES:
        for message in messages(module.DESCRIPTOR.message_types_by_name.values()):
            theirs = triton["fields"].get(message.full_name, {})
            for field in message.fields:
                if field.name in OURS.get(message.full_name, ()):
                    assert field.name not in theirs
                    continue
                ours = [field.number, field.type, field.is_repeated]
                assert ours == theirs[field.name], f"{message.full_name}.{field.name}"
                compared += 1
    assert compared > 100


def test_every_call_of_triton_is_served_or_declared_unimplemented(triton: TritonNumbers) -> None:
    (service,) = inference_pb2.DESCRIPTOR.services_by_name.values()
    served = {method.name for method in service.methods}
    refused = {method.rpartition("/")[2] for method in UNSUPPORTED_METHODS}
    assert served | refused == set(triton["methods"])
    assert not served & refused
