"""Cuts and stages of ONNX graphs: chained stages compute what the whole computes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from profiler.cutting import process
from profiler.cutting.cuts import select_cuts
from profiler.cutting.extraction import extract_stage
from profiler.cutting.graph import find_cuts
from synergai.errors import InvalidInput, NotFound
from tests.drawn_graphs import Arrays, draw_graph
from tests.tiny_onnx import floats, new_model

DIGEST = "0" * 64


def run(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def is_cut(model: onnx.ModelProto, tensor: str, inputs: list[str], outputs: list[str]) -> bool:
    """Whether no output depends on an input once `tensor` is given: the definition, quadratic."""
    reached = set(inputs)
    for node in model.graph.node:
        if reached & set(node.input):
            reached |= set(node.output) - {tensor}
    return not reached & set(outputs)


def depends(model: onnx.ModelProto, tensor: str, inputs: list[str]) -> bool:
    reached = set(inputs)
    for node in model.graph.node:
        if reached & set(node.input):
            reached |= set(node.output)
    return tensor in reached


def needed(model: onnx.ModelProto) -> set[str]:
    found = {each.name for each in model.graph.output}
    for node in reversed(model.graph.node):
        if found & set(node.output):
            found |= set(node.input)
    return found


def chain(*kinds: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node(kind, [f"t{place}"], [f"t{place + 1}"]) for place, kind in enumerate(kinds)
    ]
    first, last = floats([1, 4], "t0", f"t{len(kinds)}")
    return new_model(nodes, [first], [last])


@pytest.mark.parametrize("block", range(10))
def test_stages_of_drawn_graphs_compute_what_the_whole_computes(block: int) -> None:
    found = 0
    for seed in range(block * 10, block * 10 + 10):
        model, inputs = draw_graph(seed)
        outputs = [each.name for each in model.graph.output]
        expected = [
            name
            for node in model.graph.node
            for name in node.output
            if name in needed(model) - set(outputs)
            and depends(model, name, list(inputs))
            and is_cut(model, name, list(inputs), outputs)
        ]
        try:
            cuts = find_cuts(model).cuts
        except InvalidInput:
            assert not expected
            continue
        assert [cut.tensor for cut in cuts] == expected
        found += len(cuts)
        whole = run(model, inputs)
        for cut in cuts:
            head = run(extract_stage(model, DIGEST, None, cut), inputs)
            assert head[cut.tensor].shape == (2, 4)
            tail = run(extract_stage(model, DIGEST, cut, None), head)
            for name, array in whole.items():
                if cut.exact:
                    np.testing.assert_array_equal(tail[name], array)
                else:
                    np.testing.assert_allclose(tail[name], array, rtol=0, atol=1e-6)
        if len(cuts) > 1:
            current = run(extract_stage(model, DIGEST, None, cuts[0]), inputs)
            for first, last in zip(cuts, (*cuts[1:], None), strict=True):
                current = run(extract_stage(model, DIGEST, first, last), current)
            for name, array in whole.items():
                np.testing.assert_allclose(current[name], array, rtol=1e-6, atol=1e-6)
    assert found


def test_a_cut_has_the_type_the_size_and_the_weights_of_both_sides() -> None:
    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    model = chain("Relu", "Neg")
    model.graph.initializer.append(weight)
    model.graph.node.append(helper.make_node("MatMul", ["t2", "w"], ["t3"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("t3", TensorProto.FLOAT, [1, 3]))
    first, second = find_cuts(model).cuts
    assert (first.tensor, first.position, first.datatype, first.shape) == ("t1", 1, "FP32", (1, 4))
    assert (first.size_bytes, first.weights_before, first.weights_after) == (16, 0, 48)
    assert (first.seam, second.seam) == (True, False)
    assert 0 < first.work < second.work < 1


def test_a_seam_that_a_shortcut_begins_at_is_not_exact() -> None:
    model = chain("Relu", "Neg")
    model.graph.node.append(helper.make_node("Add", ["t1", "t2"], ["t3"]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("t3", TensorProto.FLOAT, [1, 4]))
    (cut,) = find_cuts(model).cuts
    assert (cut.tensor, cut.seam, cut.exact) == ("t1", True, False)


def test_a_body_that_reads_an_outer_tensor_keeps_it_in_its_stage() -> None:
    model = chain("Relu", "Neg")
    body = [
        helper.make_graph(
            [helper.make_node(kind, ["t1"], [kind])],
            kind,
            [],
            [helper.make_tensor_value_info(kind, TensorProto.FLOAT, [1, 4])],
        )
        for kind in ("Abs", "Exp")
    ]
    nodes = [
        helper.make_node("ReduceSum", ["t2"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("If", ["condition"], ["t3"], then_branch=body[0], else_branch=body[1]),
    ]
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("t3", TensorProto.FLOAT, [1, 4]))
    inputs: Arrays = {"t0": np.ones((1, 4), np.float32)}
    (cut,) = find_cuts(model).cuts
    assert cut.tensor == "t1"
    head = run(extract_stage(model, DIGEST, None, cut), inputs)
    tail = run(extract_stage(model, DIGEST, cut, None), head)
    np.testing.assert_array_equal(tail["t3"], run(model, inputs)["t3"])


def test_a_graph_of_5_000_nodes_has_all_of_its_cuts() -> None:
    cuts = find_cuts(chain(*["Relu", "Neg"] * 2500)).cuts
    assert [cut.position for cut in cuts] == list(range(1, 5000))


def test_the_same_model_and_tensors_give_the_same_bytes_and_another_digest_other_ones() -> None:
    model = chain("Relu", "Neg", "Relu")
    cut = find_cuts(model).cuts[0]
    stages = [extract_stage(model, digest, None, cut) for digest in (DIGEST, DIGEST, "1" * 64)]
    first, second, third = (each.SerializeToString(deterministic=True) for each in stages)
    assert first == second != third


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(InvalidInput) as caught:
        find_cuts(model)
    return str(caught.value)


def test_a_graph_without_a_cut_is_refused() -> None:
    assert "no tensor through which all data flows" in refusal(chain("Relu"))


def test_a_cycle_is_refused() -> None:
    model = chain("Relu", "Neg")
    model.graph.node[0].input[0] = "t2"
    assert "has a cycle" in refusal(model)


def test_two_tensors_of_one_name_are_refused() -> None:
    model = chain("Relu", "Neg")
    model.graph.node.append(helper.make_node("Relu", ["t0"], ["t1"]))
    assert "two tensors with the name 't1'" in refusal(model)


def test_tensors_of_absurd_size_or_unknown_type_are_no_cuts() -> None:
    model = chain("Relu", "Neg")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 1 << 62
    assert "types or sizes cannot be inferred" in refusal(model)
    model = chain("Relu", "Neg")
    model.graph.node[0].domain = "some.company"
    model.graph.node[0].op_type = "Secret"
    model.opset_import.append(helper.make_opsetid("some.company", 1))
    assert "types or sizes cannot be inferred" in refusal(model)


def test_cuts_are_selected_by_name_in_order() -> None:
    cuts = find_cuts(chain("Relu", "Neg", "Relu")).cuts
    assert [cut.position for cut in select_cuts("net", cuts, ["t1", "t2"])] == [1, 2]
    with pytest.raises(NotFound, match="engine 'net' has no cut at 'missing'"):
        select_cuts("net", cuts, ["missing"])
    for tensors in (["t2", "t1"], ["t1", "t1"]):
        with pytest.raises(InvalidInput, match="in the order of the data flow"):
            select_cuts("net", cuts, tensors)


def test_the_child_process_returns_cuts_and_says_why_it_refuses(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = chain("Relu", "Neg")
    onnx.save(model, path)
    assert process.find_cuts(path).cuts == find_cuts(model).cuts
    path.write_bytes(b"no model")
    with pytest.raises(InvalidInput, match=r"model\.onnx cannot be cut: it is corrupt"):
        process.find_cuts(path)


def field(number: int, content: bytes) -> bytes:
    length = len(content)
    digits = [length >> shift & 0x7F for shift in range(0, max(1, length.bit_length()), 7)]
    return bytes([number << 3 | 2, *(each | 0x80 for each in digits[:-1]), digits[-1]]) + content


def test_a_deeply_nested_graph_is_refused_by_the_child_process(tmp_path: Path) -> None:
    graph = b""
    for _ in range(1000):
        graph = field(1, field(5, field(6, graph)))  # a node with an attribute that is a graph
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(InvalidInput, match="it is corrupt or not an ONNX file"):
        process.find_cuts(path)


def test_a_process_that_dies_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(chain("Relu", "Neg"), path)
    monkeypatch.setattr(process, "_TIMEOUT_S", 0.001)
    with pytest.raises(InvalidInput, match="cannot be cut within"):
        process.find_cuts(path)
    monkeypatch.undo()
    monkeypatch.setattr(process, "_BYTES", 0)
    monkeypatch.setattr(process, "_BYTES_PER_MODEL_BYTE", 1)
    with pytest.raises(InvalidInput, match="cannot be cut"):
        process.find_cuts(path)


def test_weights_in_other_files_are_refused(tmp_path: Path) -> None:
    model = chain("Relu", "Neg")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(InvalidInput, match="weights in other files"):
        process.find_cuts(path)
    assert [each.name for each in process.read_cuts(path).inputs] == ["t0"]
