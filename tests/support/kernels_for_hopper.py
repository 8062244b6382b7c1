"""Compile the convolution kernels for a card that is not here, and print the shared memory and races of each as JSON.

    TRITON_INTERPRET=0 python -m tests.support.kernels_for_hopper

Launches are noted on small tensors in the memory of the CPU, and their kernels compiled for sm_90 (an H100 or H200).
"""

import json
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.support.races import find_races
from unbraid.networks import (
    conv_choice,
    conv_kernels,
    conv_tiles,
    doubling_kernel,
    folding_kernel,
    halving_kernels,
    last_layer_kernel,
    partial_sums,
    picture_kernels,
    weight_layout,
)
from unbraid.networks.epilogue import Epilogue, pack
from unbraid.networks.picture_kernels import Gradient, Product

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
BF16, F32 = torch.bfloat16, torch.float32


def compile_launch(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the bytes of shared memory of a launch, specialised as Triton does it, and its races."""
    options = {key: constants.pop(key) for key in OPTIONS if key in constants}
    constants.pop("writes", None)
    signature, values, attributes = {}, dict[tuple[int, ...], Any](), {}
    for place, name in enumerate(kernel.arg_names):
        given = constants[name] if name in constants else arguments[place]
        specialised = isinstance(given, Tensor) or not kernel.params[place].do_not_specialize
        if name in constants or (specialised and not isinstance(given, Tensor) and given == 1):
            signature[name], values[place,] = "constexpr", given
            continue
        signature[name] = TYPES[given.dtype] if isinstance(given, Tensor) else "i32"
        if isinstance(given, Tensor) or (specialised and given % 16 == 0):
            attributes[place,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, values, attributes)
    chosen = {key: value for key, value in options.items() if value is not None}
    compiled = triton.compile(source, target=HOPPER, options=chosen)
    return compiled.metadata.shared, find_races(compiled.asm["ttgir"])


def note_launches() -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Let all modules note their launches in a list instead."""
    noted: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def launch(kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        noted.append((kernel, arguments, constants))

    others = (doubling_kernel, folding_kernel, halving_kernels, last_layer_kernel)
    for module in (conv_kernels, *others, partial_sums, picture_kernels, weight_layout):
        module.launch = launch
    conv_kernels._precision = lambda: "tf32"
    return noted


def images(side: int, channels: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(2, 8, side, side, channels, dtype=dtype)


def weights(first: int, second: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(2, first, 4, 4, second, dtype=dtype).movedim(-1, 2)


def launch_layer(large: int, small: int, side: int, stored: torch.dtype, compute: torch.dtype) -> None:
    """Launch all passes of a layer that halves or doubles `large` channels of images of a side to or from `small`."""
    wide, narrow, picture = images(side, large, stored), images(side // 2, small, stored), large <= 4
    wide = wide.float() if picture else wide
    bias, weight = torch.zeros(2, 64), weights(small, large, compute)
    for mask in (False, True):
        for transposed, x, out in ((False, wide, narrow), (True, narrow, wide)):
            kept = out.movedim(-1, 2) if mask else None
            own = None if mask else bias[:, : out.shape[-1]].contiguous()
            conv_choice.launch_convolution(transposed, x, weight, out, 2, 1, compute, Epilogue(own, not mask, kept))
            if out.shape[-1] % 32 == 0:
                bits = pack(out.movedim(-1, 2))
                epilogue = Epilogue(own, not mask, bits if mask else None, None if mask else bits)
                conv_choice.launch_convolution(transposed, x, weight, out, 2, 1, compute, epilogue)
    for totals in (1, 2):
        conv_choice.launch_kernel_gradient(wide, Gradient(narrow, totals), 4, 2, 1, compute)
    if large == 1 and small <= 32:  # as `computes_both_gradients` says
        picture_kernels.differentiate_windows(wide, compute, Gradient(narrow, 2), Product(weight, narrow, True))


def main() -> None:
    noted, found = note_launches(), {}
    conv_tiles.MIN_ROWS_TO_WALK = 1
    for stored, compute in ((BF16, BF16), (F32, F32), (F32, BF16)):
        for large, small, side in ((1, 32, 64), (3, 32, 64), (1, 64, 64), (3, 64, 64), (32, 32, 32), (32, 64, 16)):
            noted.clear()
            launch_layer(large, small, side, stored, compute)
            for kernel, arguments, constants in noted:
                facts = f"{large} and {small} channels, {stored} as {compute}, masked {constants.get('MASKED')}"
                totals = f", totals {constants['TOTALS']}" if "TOTALS" in constants else ""
                if any(isinstance(given, Tensor) and given.dtype == torch.int32 for given in arguments):
                    totals += ", bits"
                found[f"{kernel.__name__}: {facts}{totals}"] = compile_launch(kernel, arguments, dict(constants))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
