"""Print the fields of all messages of tritonclient's stubs as JSON; run as a separate process."""

import json
import sys
from collections.abc import Iterable

from google.protobuf.descriptor import Descriptor
from tritonclient.grpc import model_config_pb2, service_pb2


def collect(
    messages: Iterable[Descriptor], found: dict[str, dict[str, tuple[int, int, bool]]]
) -> None:
    for message in messages:
        found[message.full_name] = {
            field.name: (field.number, field.type, field.is_repeated) for field in message.fields
        }
        collect(message.nested_types, found)


if __name__ == "__main__":
    fields: dict[str, dict[str, tuple[int, int, bool]]] = {}
    for module in (service_pb2, model_config_pb2):
        collect(module.DESCRIPTOR.message_types_by_name.values(), fields)
    methods = [
        m.name for m in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    ]
    sys.stdout.write(json.dumps({"fields": fields, "methods": methods}))
