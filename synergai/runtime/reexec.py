"""Hand a process over to a module that serves, with its configuration.

The command line and the validation of settings take memory that a serving process does not need.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, TypeVar

import msgspec

from synergai.runtime.settings import construct

if TYPE_CHECKING:
    from typing import NoReturn

    from msgspec import Struct

StructT = TypeVar("StructT", bound="Struct")


def encode_config(config: Struct) -> str:
    """Return a configuration as text for `decode_config`."""
    # Not msgspec's JSON, which turns infinity into null.
    return json.dumps(msgspec.to_builtins(config, enc_hook=os.fspath))


def decode_config(text: str, cls: type[StructT]) -> StructT:
    """Return the configuration that `encode_config` made `text` of."""
    return msgspec.convert(json.loads(text), cls, dec_hook=construct)


def run_instead(module: str, config: Struct) -> NoReturn:
    """Execute ``python -m MODULE CONFIG`` in place of this program, under the same process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = (sys.executable, "-m", module, encode_config(config))
    os.execv(sys.executable, command)  # noqa: S606  # no shell is needed
