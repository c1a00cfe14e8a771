"""Writer of tiny TFLite files that needs no converter."""

import struct
from pathlib import Path

import flatbuffers
from ai_edge_litert import schema_py_generated as schema


def _tensor(
    name: str, kind: int, shape: list[int], signature: list[int] | None = None, scale: float = 0.0
) -> schema.TensorT:
    quantisation = schema.QuantizationParametersT()
    if scale:
        quantisation.scale, quantisation.zeroPoint = [scale], [3]
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.shape = name, kind, shape
    tensor.shapeSignature, tensor.quantization = signature, quantisation
    return tensor


def save_square(path: Path) -> Path:
    """Save a model that reshapes x of [n, 2] to y of [2, 2], for which n must be 2."""
    return save_reshape(path, schema.TensorType.FLOAT32, [-1, 2], [2, 2])


def save_texts(path: Path, *sizes: int) -> Path:
    """Save a model that reshapes the strings x of [n] to y of `sizes`."""
    return save_reshape(path, schema.TensorType.STRING, [-1], list(sizes))


def save_reshape(path: Path, kind: int, signature: list[int], sizes: list[int]) -> Path:
    """Save a model that reshapes x to y of `sizes`."""
    buffer = schema.BufferT()
    buffer.data = list(struct.pack(f"<{len(sizes)}i", *sizes))
    tensors = [
        _tensor("x", kind, list(map(abs, signature)), signature),
        _tensor("y", kind, list(map(abs, sizes)), sizes),
        _tensor("sizes", schema.TensorType.INT32, [len(sizes)]),
    ]
    tensors[2].buffer = 1
    code, operator = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = schema.BuiltinOperator.RESHAPE
    operator.inputs, operator.outputs = [0, 2], [1]
    return _save(path, tensors, [schema.BufferT(), buffer], code, operator)


def save_sum(
    path: Path,
    *,
    width: int = 2,
    dynamic: bool = True,
    int8: bool = False,
    matrix: bool = False,
    signature: str = "",
) -> Path:
    """Save a model of y = x + x, or of y = x @ w with a matrix of ones.

    Args:
        path: The file to write.
        width: Width of x, whose shape is [1, width].
        dynamic: Make the 1 a dynamic dimension.
        int8: Use integers with scale 0.5 and zero point 3 for x and y, instead of floats.
        matrix: Multiply by a constant matrix instead of adding.
        signature: Name of a signature, which calls x and y a and b.
    """
    kind = schema.TensorType.INT8 if int8 else schema.TensorType.FLOAT32
    sizes = [-1, width] if dynamic else None
    scale = 0.5 if int8 else 0.0
    tensors = [
        _tensor("x", kind, [1, width], sizes, scale),
        _tensor("y", kind, [1, width], sizes, scale),
    ]
    buffers = [schema.BufferT()]
    code, operator = schema.OperatorCodeT(), schema.OperatorT()
    operator.outputs = [1]
    if matrix:
        weights = schema.BufferT()
        weights.data = list(b"\0\0\x80\x3f" * (width * width))
        buffers.append(weights)
        tensors.append(_tensor("w", kind, [width, width]))
        tensors[-1].buffer = 1
        operator.inputs = [0, 2, -1]
        operator.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        operator.builtinOptions = schema.FullyConnectedOptionsT()
        code.builtinCode = schema.BuiltinOperator.FULLY_CONNECTED
    else:
        operator.inputs = [0, 0]
        operator.builtinOptionsType = schema.BuiltinOptions.AddOptions
        operator.builtinOptions = schema.AddOptionsT()
        code.builtinCode = schema.BuiltinOperator.ADD
    return _save(path, tensors, buffers, code, operator, signature)


def _save(
    path: Path,
    tensors: list[schema.TensorT],
    buffers: list[schema.BufferT],
    code: schema.OperatorCodeT,
    operator: schema.OperatorT,
    signature: str = "",
) -> Path:
    """Save a model from the first tensor to the second one."""
    code.deprecatedBuiltinCode = code.builtinCode
    graph = schema.SubGraphT()
    graph.tensors, graph.inputs, graph.outputs, graph.operators = tensors, [0], [1], [operator]
    model = schema.ModelT()
    model.version, model.description = 3, "written by a test"
    model.operatorCodes, model.subgraphs, model.buffers = [code], [graph], buffers
    if signature:
        definition = schema.SignatureDefT()
        definition.signatureKey, definition.subgraphIndex = signature, 0
        definition.inputs, definition.outputs = [schema.TensorMapT()], [schema.TensorMapT()]
        definition.inputs[0].name, definition.inputs[0].tensorIndex = "a", 0
        definition.outputs[0].name, definition.outputs[0].tensorIndex = "b", 1
        model.signatureDefs = [definition]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))
    return path
