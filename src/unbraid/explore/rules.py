"""How each operation of torch is written in the graph: one small function each."""

import math
from typing import Any

import torch

from unbraid.errors import UsageError
from unbraid.explore.lower import RULES as RULES, Lowering, Value, rule

UNARY = {
    "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "neg": "neg", "abs": "abs", "reciprocal": "reciprocal", "erf": "erf", "sin": "sin", "cos": "cos", "floor": "floor",
    "ceil": "ceil", "round": "round", "sign": "sign", "log1p": "log1p", "expm1": "expm1", "logical_not": "not",
    "bitwise_not": "not", "isinf": "isinf", "isnan": "isnan", "trunc": "trunc",
}  # fmt: skip
BINARY = {
    "mul": "mul", "div": "div", "maximum": "max", "minimum": "min", "gt": "gt", "ge": "ge", "lt": "lt", "le": "le",
    "eq": "eq", "ne": "ne", "bitwise_and": "mul", "logical_and": "mul", "bitwise_or": "max", "logical_or": "max",
    "__and__": "mul", "__or__": "max", "pow": "pow",
}  # fmt: skip
REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "any": "max", "all": "min"}
SAME = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "_reshape_alias", "_reshape_copy", "alias", "detach")
SAME += ("clone", "contiguous", "lift_fresh", "lift_fresh_copy")

Given = dict[str, Any]
Shapes = list[Any]


@rule(*UNARY)
def unary(to: Lowering, given: Given, shapes: Shapes) -> int:
    return to.unary(UNARY[given["name"]], given["self"])


@rule(*BINARY)
def binary(to: Lowering, given: Given, shapes: Shapes) -> int:
    first = to.operand(given["self"])
    second = to.operand(given["exponent"] if given["name"] == "pow" else given["other"])
    made = to.binary(BINARY[given["name"]], first, second, shapes[0])
    rounding = {"floor": "floor", "trunc": "trunc"}.get(given.get("rounding_mode") or "")
    return to.unary(rounding, made) if rounding else made


@rule("add", "sub", "rsub")
def add(to: Lowering, given: Given, shapes: Shapes) -> int:
    """a + alpha b, a - alpha b, or b - alpha a."""
    first, second = to.operand(given["self"]), to.operand(given["other"])
    if given["name"] == "rsub":
        first, second = second, first
    second = to.scale(second, given.get("alpha", 1))
    return to.binary("add" if given["name"] == "add" else "sub", first, second, shapes[0])


@rule("square")
def square(to: Lowering, given: Given, shapes: Shapes) -> int:
    return to.binary("mul", given["self"], given["self"], shapes[0])


@rule("silu")
def silu(to: Lowering, given: Given, shapes: Shapes) -> int:
    return to.binary("mul", given["self"], to.unary("sigmoid", given["self"]), shapes[0])


@rule("leaky_relu")
def leaky_relu(to: Lowering, given: Given, shapes: Shapes) -> int:
    scaled = to.binary("mul", given["self"], to.number(given["negative_slope"]), shapes[0])
    positive = to.binary("gt", given["self"], to.number(0), shapes[0])
    return to.emit("where", [positive, given["self"], scaled], shapes[0])


@rule("clamp", "clamp_min", "clamp_max", "hardtanh")
def clamp(to: Lowering, given: Given, shapes: Shapes) -> int:
    value = given["self"]
    for kind, names in (("max", ("min", "min_val")), ("min", ("max", "max_val"))):
        for bound in (given[name] for name in names if given.get(name) is not None):
            value = to.binary(kind, value, to.operand(bound), shapes[0])
    return value


@rule("where")
def where(to: Lowering, given: Given, shapes: Shapes) -> int:
    return to.emit("where", [given["condition"], to.operand(given["self"]), to.operand(given["other"])], shapes[0])


@rule("masked_fill")
def masked_fill(to: Lowering, given: Given, shapes: Shapes) -> int:
    return to.emit("where", [given["mask"], to.operand(given["value"]), given["self"]], shapes[0])


@rule("fill", "full_like", "zeros_like", "ones_like", "new_zeros", "new_ones", "new_full", "empty_like", "new_empty")
def fill(to: Lowering, given: Given, shapes: Shapes) -> int:
    """A constant that has the shape of a value."""
    number = given.get("fill_value", given.get("value", 1.0 if "ones" in given["name"] else 0.0))
    return to.emit("expand", [to.operand(number)], shapes[0])


@rule("_to_copy")
def convert(to: Lowering, given: Given, shapes: Shapes) -> int:
    """The same numbers; those that become whole lose their fraction."""
    before, after = (to.dtype(ref) for ref in (given["call"].arguments["self"], given["call"].outputs[0]))
    if before.is_floating_point and after == torch.bool:
        return to.binary("ne", given["self"], to.number(0), shapes[0])
    if before.is_floating_point and not after.is_floating_point:
        return to.unary("trunc", given["self"])
    return given["self"]


@rule(*SAME)
def reshape(to: Lowering, given: Given, shapes: Shapes) -> int:
    same = to.graph.shape_of(given["self"]) == shapes[0]
    return given["self"] if same else to.emit("reshape", [given["self"]], shapes[0])


@rule("permute", "transpose", "t")
def permute(to: Lowering, given: Given, shapes: Shapes) -> int:
    rank = len(shapes[0])
    order = list(range(rank))
    if given["name"] == "permute":
        order = [axis % rank for axis in given["dims"]]
    elif rank > 1:
        a, b = (given["dim0"] % rank, given["dim1"] % rank) if given["name"] == "transpose" else (0, 1)
        order[a], order[b] = b, a
    return to.emit("permute", [given["self"]], shapes[0], order=order)


@rule("expand", "repeat")
def expand(to: Lowering, given: Given, shapes: Shapes) -> int:
    if given["name"] == "repeat":
        missing = len(shapes[0]) - len(to.graph.shape_of(given["self"]))
        old = (1,) * missing + to.graph.shape_of(given["self"])
        value = given["self"]
        for axis, times in enumerate(given["repeats"]):
            if times != 1 and old[axis] != 1:  # a copy beside a copy
                shape = tuple(s * (times if a == axis else 1) for a, s in enumerate(old))
                value, old = to.emit("concat", [value] * times, shape, axis=axis), shape
        given = {**given, "self": value}
    return to.emit("expand", [given["self"]], shapes[0])


@rule("slice", "narrow")
def cut(to: Lowering, given: Given, shapes: Shapes) -> int:
    axis, old = given["dim"] % len(shapes[0]), to.graph.shape_of(given["self"])
    if old == shapes[0]:
        return given["self"]
    start = given.get("start") or 0
    start = start + old[axis] if start < 0 else start
    return to.emit("slice", [given["self"]], shapes[0], axis=axis, start=start, step=given.get("step", 1))


@rule("select")
def select(to: Lowering, given: Given, shapes: Shapes) -> int:
    old = to.graph.shape_of(given["self"])
    axis = given["dim"] % len(old)
    kept = tuple(1 if a == axis else size for a, size in enumerate(old))
    start = given["index"] % old[axis] if old[axis] > 0 else given["index"]
    return to.emit("reshape", [to.emit("slice", [given["self"]], kept, axis=axis, start=start, step=1)], shapes[0])


@rule("split", "split_with_sizes", "unbind", "chunk", "unsafe_split")
def split(to: Lowering, given: Given, shapes: Shapes) -> list[int]:
    old = to.graph.shape_of(given["self"])
    axis, start, made = given["dim"] % len(old), 0, []
    for shape in shapes:
        length = 1 if given["name"] == "unbind" else shape[axis]
        kept = tuple(length if a == axis else size for a, size in enumerate(old))
        part = to.emit("slice", [given["self"]], kept, axis=axis, start=start, step=1)
        made.append(part if kept == shape else to.emit("reshape", [part], shape))
        start += length
    return made


@rule("cat", "stack")
def concat(to: Lowering, given: Given, shapes: Shapes) -> int:
    axis, parts = given["dim"] % len(shapes[0]), list(given["tensors"])
    if given["name"] == "stack":
        single = tuple(1 if a == axis else size for a, size in enumerate(shapes[0]))
        parts = [to.emit("reshape", [part], single) for part in parts]
    parts = [part for part in parts if math.prod(to.graph.shape_of(part)) != 0]
    return parts[0] if len(parts) == 1 else to.emit("concat", parts, shapes[0], axis=axis)


@rule("constant_pad_nd")
def pad(to: Lowering, given: Given, shapes: Shapes) -> int:
    """Constants before and behind, one axis after the other from the last."""
    value, rank = given["self"], len(shapes[0])
    for place in range(0, len(given["pad"]), 2):
        axis, amounts, old = rank - 1 - place // 2, given["pad"][place : place + 2], to.graph.shape_of(value)
        shapes_along = [(*old[:axis], length, *old[axis + 1 :]) for length in (*amounts, old[axis] + sum(amounts))]
        before, behind = (
            [to.emit("expand", [to.number(given["value"] or 0)], shape)] if amount else []
            for amount, shape in zip(amounts, shapes_along, strict=False)
        )
        if any(amounts):
            value = to.emit("concat", [*before, value, *behind], shapes_along[-1], axis=axis)
    return value


@rule(*REDUCTIONS)
def reduce(to: Lowering, given: Given, shapes: Shapes) -> int:
    rank = len(to.graph.shape_of(given["self"]))
    axes = given.get("dim")
    axes = list(range(rank)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    axes = sorted(axis % rank for axis in axes)
    return to.emit("reduce", [given["self"]], shapes[0], kind=REDUCTIONS[given["name"]], axes=axes)


@rule("argmax", "argmin")
def extreme(to: Lowering, given: Given, shapes: Shapes) -> int:
    axis = given["dim"] % len(to.graph.shape_of(given["self"]))
    return to.emit("reduce", [given["self"]], shapes[0], kind=given["name"], axes=[axis])


@rule("max", "min")
def largest(to: Lowering, given: Given, shapes: Shapes) -> int | list[int]:
    """Lower max or min: of all numbers, of two tensors, or along an axis, with the positions."""
    kind, value = given["name"], given["self"]
    if isinstance(given.get("other"), Value):
        return to.binary(kind, value, given["other"], shapes[0])
    rank = len(to.graph.shape_of(value))
    axes = [given["dim"] % rank] if given.get("dim") is not None else list(range(rank))
    kinds = (kind, f"arg{kind}")[: len(shapes)]
    return [to.emit("reduce", [value], shapes[0], kind=each, axes=axes) for each in kinds]


@rule("_softmax", "_log_softmax", "softmax", "log_softmax")
def softmax(to: Lowering, given: Given, shapes: Shapes) -> int:
    axis = given["dim"] % len(shapes[0])
    return to.emit("softmax", [given["self"]], shapes[0], axis=axis, log="log" in given["name"])


@rule("logsumexp")
def logsumexp(to: Lowering, given: Given, shapes: Shapes) -> int:
    """The value at any place less its log softmax is the same everywhere; the first place serves."""
    value, old = given["self"], to.graph.shape_of(given["self"])
    axes = sorted(axis % len(old) for axis in given["dim"])
    kept = tuple(1 if a in axes else size for a, size in enumerate(old))
    most = to.binary("max", to.emit("reduce", [value], kept, kind="max", axes=axes), to.number(-3e38), kept)
    apart = to.unary("exp", to.binary("sub", value, most, old))
    total = to.unary("log", to.emit("reduce", [apart], kept, kind="sum", axes=axes))
    made = to.binary("add", total, most, kept)
    return made if kept == shapes[0] else to.emit("reshape", [made], shapes[0])


@rule("mm", "bmm", "addmm", "baddbmm", "mv", "dot")
def matmul(to: Lowering, given: Given, shapes: Shapes) -> int:
    """A product, and a bias where it is one number for each column; other biases are added."""
    if given["name"] in ("mm", "bmm"):
        return to.emit("matmul", [given["self"], given["mat2"]], shapes[0])
    if given["name"] == "mv":
        column = (*to.graph.shape_of(given["vec"]), 1)
        product = (*shapes[0], 1)
        made = to.emit("matmul", [given["self"], to.emit("reshape", [given["vec"]], column)], product)
        return to.emit("reshape", [made], shapes[0])
    first, second = (given["mat1"], given["mat2"]) if given["name"] == "addmm" else (given["batch1"], given["batch2"])
    bias, plain = given["self"], given.get("beta", 1) == given.get("alpha", 1) == 1
    if plain and to.graph.shape_of(bias) == shapes[0][-1:]:
        return to.emit("matmul", [first, second, bias], shapes[0])
    made = to.scale(to.emit("matmul", [first, second], shapes[0]), given.get("alpha", 1))
    return to.binary("add", made, to.scale(bias, given.get("beta", 1)), shapes[0])


@rule("convolution")
def convolution(to: Lowering, given: Given, shapes: Shapes) -> int:
    if given["weight"] not in to.graph.constants:
        raise UsageError(
            "The explorer runs convolutions with fixed kernels; this network computes a kernel from its input."
        )
    inputs = [given["input"], given["weight"], *([given["bias"]] if given["bias"] is not None else [])]
    settings = {key: given[key] for key in ("stride", "padding", "dilation", "transposed", "groups")}
    if len(shapes[0]) != 3:
        return to.emit("convolution", inputs, shapes[0], **settings)
    wide = [to.emit("reshape", [v], (*to.graph.shape_of(v)[:2], 1, *to.graph.shape_of(v)[2:])) for v in inputs[:2]]
    flat = {"stride": 1, "padding": 0, "dilation": 1}
    settings.update({key: [filler, *settings[key]] for key, filler in flat.items()})
    made = to.emit("convolution", [*wide, *inputs[2:]], (*shapes[0][:2], 1, *shapes[0][2:]), **settings)
    return to.emit("reshape", [made], shapes[0])


@rule("native_batch_norm", "_native_batch_norm_legit_no_training", "_native_batch_norm_legit")
def batch_norm(to: Lowering, given: Given, shapes: Shapes) -> list[int]:
    """With running statistics: x scale + shift for each channel."""
    constants = to.graph.constants
    mean, variance = (constants[given[name]] for name in ("running_mean", "running_var"))
    scale = (variance + given["eps"]).rsqrt()
    scale = scale if given["weight"] is None else scale * constants[given["weight"]]
    shift = -mean * scale if given["bias"] is None else constants[given["bias"]] - mean * scale
    channels = (-1, *[1] * (len(shapes[0]) - 2))
    moved = to.binary("mul", given["input"], to.constant(scale.view(channels)), shapes[0])
    made = to.binary("add", moved, to.constant(shift.view(channels)), shapes[0])
    return [made, made, made][: len(shapes)]


@rule("native_layer_norm")
def layer_norm(to: Lowering, given: Given, shapes: Shapes) -> list[int]:
    """Standardise over the last axes, then scale and shift."""
    rank = len(shapes[0])
    axes = list(range(rank - len(given["normalized_shape"]), rank))
    made = _standardise(to, given["input"], axes, given["eps"])
    return [_affine(to, made, given["weight"], given["bias"], shapes[0])] * len(shapes)


@rule("native_group_norm")
def group_norm(to: Lowering, given: Given, shapes: Shapes) -> list[int]:
    """Standardise each group of channels, then scale and shift each channel."""
    rows, groups = shapes[0][0], given["group"]
    channels, *rest = shapes[0][1:]
    apart = to.emit("reshape", [given["input"]], (rows, groups, channels // groups * math.prod(rest)))
    made = to.emit("reshape", [_standardise(to, apart, [2], given["eps"])], shapes[0])
    wide = (channels, *[1] * len(rest))
    scale, shift = (
        None if given[key] is None else to.emit("reshape", [given[key]], wide) for key in ("weight", "bias")
    )
    return [_affine(to, made, scale, shift, shapes[0])] * len(shapes)


def _standardise(to: Lowering, value: int, axes: list[int], epsilon: float) -> int:
    """(x - mean) / sqrt(variance + epsilon) over some axes."""
    shape = to.graph.shape_of(value)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    centred = to.binary("sub", value, to.emit("reduce", [value], kept, kind="mean", axes=axes), shape)
    variance = to.emit("reduce", [to.binary("mul", centred, centred, shape)], kept, kind="mean", axes=axes)
    scale = to.unary("rsqrt", to.binary("add", variance, to.number(epsilon), kept))
    return to.binary("mul", centred, scale, shape)


def _affine(to: Lowering, value: int, weight: int | None, bias: int | None, shape: tuple[int, ...]) -> int:
    value = value if weight is None else to.binary("mul", value, weight, shape)
    return value if bias is None else to.binary("add", value, bias, shape)


@rule("index", "index_select")
def take(to: Lowering, given: Given, shapes: Shapes) -> int:
    """Places along one axis that are constants."""
    if given["name"] == "index_select":
        axis, index = given["dim"] % len(shapes[0]), given["index"]
    else:
        axis = next(axis for axis, each in enumerate(given["indices"]) if each is not None)
        index = given["indices"][axis]
    return to.emit("take", [given["self"], index], shapes[0], axis=axis)
