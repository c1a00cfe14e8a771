"""What the stubs of the wire contract need."""

import importlib
import re
from pathlib import Path

import google.protobuf
import pytest

import synergai.v1
from synergai.errors import NotSupported


def test_older_protobuf_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google.protobuf, "__version__", "6.33.6")
    with pytest.raises(NotSupported, match=r"protobuf 6\.33\.6 is installed.* virtual environment"):
        importlib.reload(synergai.v1)


def test_needed_protobuf_is_that_of_the_stubs() -> None:
    text = Path(synergai.v1.__file__).with_name("common_pb2.py").read_text()
    [version] = re.findall(r"Protobuf Python Version: (\d+)\.(\d+)", text)
    assert tuple(map(int, version)) == synergai.v1._GENERATED_FOR
