"""SynergAI wire contract, generated from proto/synergai/v1."""

import google.protobuf

from synergai.errors import NotSupported

_GENERATED_FOR = (7, 35)

if tuple(map(int, google.protobuf.__version__.split(".")[:2])) < _GENERATED_FOR:
    raise NotSupported(
        f"protobuf {google.protobuf.__version__} is installed, but SynergAI needs "
        f"{'.'.join(map(str, _GENERATED_FOR))} or later; another package, such as tritonclient, "
        "may have replaced it: install SynergAI in a virtual environment of its own"
    )
