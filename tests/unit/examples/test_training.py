"""Training, pruning and quantisation of networks, in small sizes."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from examples.training import families, fashion_mnist, layers
from examples.training.strided_cnn import INPUT, Images, Shape, StridedCnn, Training
from profiler.zoo import recipes as zoo
from profiler.zoo.onnx_graph import write_model
from profiler.zoo.variants import quantise
from synergai.errors import InvalidInput, NotFound
from synergai.models.directory import ModelDirectory

SHAPE = Shape(size=6, channels=(8, 12), strides=(1, 2), classes=3)


def bars(count: int, seed: int = 1) -> Images:
    """Return noisy images with a bright row, column or diagonal, which is their class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    pixels = generator.integers(0, 90, (count, 6, 6)).astype(np.uint8)
    for image, label, place in zip(pixels, labels, generator.integers(0, 6, count), strict=True):
        if label == 0:
            image[place] = 255
        elif label == 1:
            image[:, place] = 255
        else:
            np.fill_diagonal(image, 255)
    return Images(pixels, labels)


@pytest.fixture(scope="module")
def trained() -> StridedCnn:
    network = StridedCnn.initial(SHAPE, seed=3)
    with threadpool_limits(1):
        network.train(bars(1500), Training(epochs=10))
    return network


def run(model: onnx.ModelProto, images: Images) -> NDArray[np.int64]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    [answers] = session.run(None, {INPUT: images.pixels[:, np.newaxis]})
    return np.asarray(answers.argmax(axis=1))


def test_network_learns_and_its_model_answers_alike(trained: StridedCnn) -> None:
    test = bars(300, seed=2)
    assert trained.accuracy(test) > 0.95
    answers = run(trained.to_onnx(), test)
    assert (answers == test.labels).mean() == trained.accuracy(test)


def test_training_is_reproducible() -> None:
    first, second = (StridedCnn.initial(SHAPE, seed=3) for _ in range(2))
    with threadpool_limits(1):
        for network in (first, second):
            network.train(bars(200), Training(epochs=0.5, mirrored=True))
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
def test_pruned_network_has_a_share_of_the_channels(trained: StridedCnn, share: float) -> None:
    pruned = trained.pruned(share, bars(200))
    channels = tuple(max(1, round(share * each)) for each in SHAPE.channels)
    assert pruned.shape == replace(SHAPE, channels=channels)
    assert run(pruned.to_onnx(), bars(50)).shape == (50,)
    if share == 1:
        assert pruned.accuracy(bars(100)) == trained.accuracy(bars(100))


def test_fine_tuning_recovers_accuracy(trained: StridedCnn) -> None:
    test = bars(300, seed=2)
    pruned = trained.pruned(0.5, bars(1500))
    before = pruned.accuracy(test)
    with threadpool_limits(1):
        pruned.train(bars(1500), Training(epochs=4, rate=1.5e-3))
    assert pruned.accuracy(test) > before


def test_quantised_model_has_the_same_tensors_and_nearly_the_same_answers(
    trained: StridedCnn, tmp_path: Path
) -> None:
    images, test = bars(64), bars(300, seed=2)
    source, target = tmp_path / "full.onnx", tmp_path / "int8.onnx"
    write_model(source, trained.to_onnx())
    quantise(source, target, [{INPUT: each[None, None]} for each in images.pixels])

    before, after = onnx.load(source), onnx.load(target)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert {each.data_type for each in after.graph.initializer} >= {onnx.TensorProto.INT8}
    kernels = {each.name: each.data_type for each in after.graph.initializer}
    # The first one multiplies too few numbers of its single channel for integers to pay.
    assert kernels["conv0"] == onnx.TensorProto.FLOAT
    assert kernels["conv1_quantized"] == onnx.TensorProto.INT8
    assert (run(before, test) == run(after, test)).mean() > 0.95
    with pytest.raises(InvalidInput, match="quantised already"):
        quantise(target, tmp_path / "again.onnx", [{}])


def test_family_is_built_with_the_accuracy_of_each_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = families.Family(
        title="bars",
        load=lambda: (bars(1500), bars(300, seed=2)),
        shape=SHAPE,
        training=Training(epochs=2),
        tuning=Training(epochs=0.5),
        most_epochs=1,
        shares=(0.5,),
    )
    monkeypatch.setattr(families, "FAMILIES", {"bars": small})
    families.build("bars", tmp_path)

    definition = ModelDirectory(tmp_path).get("onnx_bars")
    names = [each.name for each in definition.variants]
    assert names == ["p100", "p100-int8", "p50", "p50-int8"]
    assert all((each.accuracy or 0) > 0.6 for each in definition.variants)
    for name in names:
        assert definition.of_variant(name).verified_digest() == definition.of_variant(name).sha256
    assert definition.accuracy == definition.variants[0].accuracy
    assert zoo.is_built("onnx_bars", tmp_path)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    sizes = np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()))


def test_fashion_mnist_is_read_from_its_package(tmp_path: Path) -> None:
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array([3, 9], np.uint8))
    training, test = fashion_mnist.fashion_mnist(tmp_path)
    assert np.array_equal(training.pixels, pixels)
    assert test.labels.tolist() == [3, 9]

    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([3], np.uint8))
    with pytest.raises(InvalidInput, match="do not belong together"):
        fashion_mnist.fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"junk")
    with pytest.raises(InvalidInput, match="cannot be read"):
        fashion_mnist.fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01"))
    with pytest.raises(InvalidInput, match="not an IDX file"):
        fashion_mnist.fashion_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(NotFound, match="install dataset-fashion-mnist again"):
        fashion_mnist.fashion_mnist(tmp_path)


def test_missing_data_set_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotFound, match="sudo apt-get install dataset-fashion-mnist"):
        fashion_mnist.fashion_mnist(tmp_path / "absent")


def test_gradients_of_a_convolution_match_finite_differences() -> None:
    generator = np.random.default_rng(0)
    # In double precision, which the layers do not mind, so that differences can be small.
    images, kernel, slope = (
        cast("NDArray[np.float32]", generator.normal(size=size))
        for size in ((2, 3, 4, 4), (5, 3, 3, 3), (2, 5, 4, 4))
    )

    def loss() -> float:
        return float((layers.convolve(layers.windows(images), kernel) * slope).sum())

    by_kernel, by_images = layers.convolve_gradients(layers.windows(images), kernel, slope)

    for array, gradient in ((kernel, by_kernel), (images, by_images)):
        for place in ((0, 0, 0, 0), (1, 2, 1, 2), (-1, -1, -1, -1)):
            array[place] += 1e-4
            above = loss()
            array[place] -= 2e-4
            below = loss()
            array[place] += 1e-4
            assert gradient[place] == pytest.approx((above - below) / 2e-4, rel=1e-4)


def test_pooling_returns_the_maximum_and_routes_its_gradient() -> None:
    images = np.array([[[[1, 5], [2, 3]]]], np.float32)

    pooled, mask = layers.pool(images)

    assert pooled.tolist() == [[[[5]]]]
    back = layers.pool_gradient(mask, np.full((1, 1, 1, 1), 7, np.float32))
    assert back.tolist() == [[[[0, 7], [0, 0]]]]


def test_adam_converges_to_the_minimum() -> None:
    weights = {"w": np.array([3.0, -2.0], np.float32)}
    adam = layers.Adam(weights)

    for _ in range(500):
        adam.step({"w": 2 * weights["w"]}, 0.05)

    assert np.abs(weights["w"]).max() < 0.01
