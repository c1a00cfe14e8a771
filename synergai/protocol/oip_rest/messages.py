"""Conversion of the protocol's other messages to JSON, in the form that Triton's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message


def message_to_json(message: Message) -> dict[str, Any]:
    """Return the fields of `message` by their names in the protocol, those without value included.

    Unlike ``google.protobuf.json_format``, 64-bit integers are numbers; unset messages are omitted.
    """
    return {
        field.name: _field(message, field)
        for field in message.DESCRIPTOR.fields
        if field.message_type is None or field.is_repeated or message.HasField(field.name)
    }


# The stubs lack the type of the descriptors that the C implementation returns.
def _field(message: Message, field: Any) -> object:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _value(value, field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {str(key): _value(each, of_value) for key, each in value.items()}
    return [_value(each, field) for each in value]


def _value(value: Any, field: Any) -> object:
    if field.message_type is not None:
        return message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
