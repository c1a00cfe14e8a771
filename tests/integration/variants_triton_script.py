"""An unmodified tritonclient and an engine with variants, at the gateway that argument 1 names.

It runs in a process of its own: its stubs and ours register the same protobuf package.

The variants ``large``, ``medium`` and ``small`` answer class 0, 1 and 2. Their accuracies are 0.6,
0.3 and 0.1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

VARIANTS = ("large", "medium", "small")


def main(address: str) -> None:
    with tritonclient.grpc.InferenceServerClient(address) as client:
        metadata = client.get_model_metadata("family")
        assert list(metadata.versions) == ["1", *(f"1.{name}" for name in VARIANTS)], metadata
        assert client.is_model_ready("family", "1.small")
        assert not client.is_model_ready("family", "1.tiny")
        config = client.get_model_config("family", "1.small", as_json=True)["config"]
        assert config["version_policy"] == {"specific": {"versions": ["1"]}}, config

        for number, name in enumerate(VARIANTS):
            assert ask(client, version=f"1.{name}") == (f"1.{name}", number)
        # The choice is the gateway's: the most accurate one, as there is time.
        assert ask(client) == ("1.large", 0)
        assert ask(client, version="1") == ("1.large", 0)
        version, answer = ask(client, parameters={"synergai_min_accuracy": "0.25"})
        assert version in ("1.large", "1.medium")
        assert version == f"1.{VARIANTS[answer]}"

        refuse(client, "INVALID_ARGUMENT", "1.large has 0.6", {"synergai_min_accuracy": "0.61"})
        refuse(
            client,
            "INVALID_ARGUMENT",
            "1.small has 0.1",
            {"synergai_min_accuracy": "0.2"},
            "1.small",
        )
        refuse(client, "INVALID_ARGUMENT", "must be", {"synergai_min_accuracy": "nan"})
        refuse(client, "INVALID_ARGUMENT", "must be a number", {"synergai_min_accuracy": "high"})
        refuse(client, "NOT_FOUND", "1.large, 1.medium, 1.small", {}, "1.tiny")

        (statistics,) = client.get_inference_statistics("family", "1.medium").model_stats
        assert statistics.version == "1.medium"
        assert statistics.inference_stats.success.count >= 1
        found = {each.version for each in client.get_inference_statistics("family").model_stats}
        assert found == set(metadata.versions), found


def inputs() -> list[tritonclient.grpc.InferInput]:
    tensor = tritonclient.grpc.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))
    return [tensor]


def ask(
    client: tritonclient.grpc.InferenceServerClient,
    parameters: Mapping[str, str] | None = None,
    version: str = "",
) -> tuple[str, int]:
    """Return the version that the response names, and the class that it has."""
    result = client.infer("family", inputs(), model_version=version, parameters=parameters)
    return result.get_response().model_version, int(result.as_numpy("y").argmax())


def refuse(
    client: tritonclient.grpc.InferenceServerClient,
    status: str,
    text: str,
    parameters: Mapping[str, str],
    version: str = "",
) -> None:
    try:
        ask(client, parameters, version)
    except InferenceServerException as failed:
        failure = failed
    else:
        raise AssertionError(parameters)
    assert failure.status() == f"StatusCode.{status}", failure
    assert text in failure.message(), failure


if __name__ == "__main__":
    main(sys.argv[1])
