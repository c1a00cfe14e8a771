"""Configurations as arguments of processes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, TypeVar

import msgspec

from synergai.runtime.settings import construct

if TYPE_CHECKING:
    from msgspec import Struct

StructT = TypeVar("StructT", bound="Struct")


def encode_config(config: Struct) -> str:
    """Return a configuration as text for `decode_config`."""
    # Not msgspec's JSON, which turns infinity into null.
    return json.dumps(msgspec.to_builtins(config, enc_hook=os.fspath))


def decode_config(text: str, cls: type[StructT]) -> StructT:
    """Return the configuration that `encode_config` made `text` of."""
    return msgspec.convert(json.loads(text), cls, dec_hook=construct)
