"""Serves TFLite files in an environment with tflite-runtime and without LiteRT."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Outcome, Session
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.wire.arrays import read_outputs
from worker_agent.providers import ProviderChoice, runtime_version

MODELS = Path(sys.argv[1])


def host_of(engine: str, provider: str = "") -> HostClient:
    choice = ProviderChoice(provider) if provider else None
    return HostClient(MODELS, Session(EngineName(engine), Configuration(1)), provider=choice)


def answer(host: HostClient, datatype: str, shape: tuple[int, ...], data: bytes) -> NDArray[Any]:
    [spec] = host.ready.inputs
    tensor = ModelInferRequest.InferInputTensor(name=spec.name, datatype=datatype, shape=shape)
    request = ModelInferRequest(inputs=[tensor], raw_input_contents=[data])
    ended, response = host.query(request.SerializeToString())
    assert ended.outcome is Outcome.COMPLETED, ended.detail
    [output] = read_outputs(ModelInferResponse.FromString(response)).values()
    return output


def main() -> None:
    assert runtime_version("tflite") == "tflite-runtime 2.14.0", runtime_version("tflite")
    for engine, provider in (("sum", ""), ("sum", "XNNPACK"), ("sum", "Builtin"), ("signed", "")):
        with host_of(engine, provider) as host:
            assert host.ready.unverified == ""
            for rows in (1, 3, 2):
                ones = np.ones((rows, 2), np.float32)
                assert (answer(host, "FP32", ones.shape, ones.tobytes()) == 2 * ones).all()
    with host_of("int8") as host:
        assert answer(host, "INT8", (1, 2), bytes((5, 3))).tolist() == [[7, 3]]
    with host_of("texts") as host:
        for count in (1, 3, 2):
            texts = answer(host, "BYTES", (count,), b"\1\0\0\0a" * count)
            assert texts.tolist() == [[b"a"]] * count
    with host_of("pair") as host:
        assert (host.ready.unverified, host.ready.samples) == ("", 8)
    with host_of("any") as host:
        for shape in ((), (2,), (2, 1)):
            array = np.ones(shape, np.float32)
            assert answer(host, "FP32", shape, array.tobytes()).shape == (array.size,)


if __name__ == "__main__":
    main()
