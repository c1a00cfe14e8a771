"""An unmodified tritonclient that sends every datatype over HTTP to the gateway at argv[1].

It runs in its own process: gevent replaces parts of the standard library.
"""

import sys
from collections.abc import Callable

import numpy as np
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, triton_to_np_dtype


def values(datatype: str, batch: int) -> NDArray[np.generic]:
    if datatype == "BYTES":
        return np.array([[b"", f"Zürich {i}".encode()] for i in range(batch)], dtype=np.object_)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return np.array([[bounds.min, bounds.max]] * batch, dtype)
    return (np.arange(2 * batch) % 2).astype(dtype).reshape(batch, 2)


def inputs_of(sent: dict[str, NDArray[np.generic]], *, binary: bool) -> list[InferInput]:
    inputs = []
    for datatype, array in sent.items():
        tensor = tritonclient.http.InferInput(f"in_{datatype}", array.shape, datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    return inputs


def infer(
    client: InferenceServerClient, engine: str, batch: int, *, sent_as: bool, wanted_as: bool
) -> InferResult:
    """Send and request tensors as binary data or as JSON, and compare what comes back."""
    metadata = client.get_model_metadata(engine)
    datatypes = [tensor["datatype"] for tensor in metadata["inputs"]]
    sent = {datatype: values(datatype, batch) for datatype in datatypes}
    wanted = [
        tritonclient.http.InferRequestedOutput(tensor["name"], binary_data=wanted_as)
        for tensor in metadata["outputs"]
    ]
    result = client.infer(
        engine, inputs_of(sent, binary=sent_as), outputs=wanted, model_version="1"
    )
    for datatype, array in sent.items():
        got = result.as_numpy(f"out_{datatype}")
        if datatype == "BYTES" and not wanted_as:
            got = np.vectorize(str.encode, otypes=[object])(got)
        np.testing.assert_array_equal(got, array)
        assert result.get_output(f"out_{datatype}")["datatype"] == datatype
    return result


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except InferenceServerException as failure:
        return str(failure)
    raise AssertionError


if __name__ == "__main__":
    with tritonclient.http.InferenceServerClient(sys.argv[1]) as triton:
        for sent_as in (True, False):
            for wanted_as in (True, False):
                for batch in (1, 3):
                    infer(triton, "typed", batch, sent_as=sent_as, wanted_as=wanted_as)
        infer(triton, "half", 2, sent_as=True, wanted_as=True)
        text = refused(lambda: infer(triton, "half", 2, sent_as=True, wanted_as=False))
        assert text.startswith("[400] "), text
        assert "has no JSON form; request it as binary data" in text, text
