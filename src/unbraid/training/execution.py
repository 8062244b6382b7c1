"""Execution of a step: plain, recorded as one CUDA graph, compiled, or both. Results agree up to rounding.

| execution | kernels            | launches       | ready after | used                                       |
|-----------|--------------------|----------------|-------------|--------------------------------------------|
| plain     | torch's and ours   | one by one     | at once     | on a CPU                                   |
| recorded  | torch's and ours   | one per step   | seconds     | on CUDA, for most runs                     |
| captured  | fused by Inductor  | one per step   | a minute    | on CUDA, for runs of many steps            |
| compiled  | fused by Inductor  | one by one     | a minute    | on CUDA, where several processes train     |

A recorded step costs the host one launch. It needs every number that changes between steps to be a tensor on the
device (the clock, the epoch's permutation, the learning rate), and no read-back.

A single short run in bf16 or TF32 is recorded with torch's kernels only (`uses_own_kernels`): ours take longer to
compile than they save.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch

from unbraid.config import Training
from unbraid.errors import UsageError
from unbraid.operators import hash_code
from unbraid.recorded_step import read_first_line

Execution = Literal["plain", "recorded", "compiled", "captured"]

MIN_STEPS_TO_COMPILE = 100_000
"""A shorter run ends before the compiled kernels have saved the time that compiling took."""

MIN_STEPS_FOR_OWN_KERNELS, MIN_IMAGES_FOR_OWN_KERNELS = 2000, 2000 * 64
"""A single run of fewer steps and images ends before our kernels have saved the time that compiling them takes."""

MAX_COMPILED_PROGRAMS = 512
"""Compiled versions of one function in a process: each group of a sweep has its own."""


MAX_REPEATED_OPERATIONS = 8
"""Operations that Inductor may repeat on a CPU for each use of their result, instead of storing it.

The noise is a chain of hashes that use each number twice: with Inductor's default of 30 it repeats thousands of
operations in every kernel, and a step takes up to half as long again to compile.
"""


def choose_execution(device: torch.device, steps: int, ranks: int = 1) -> Execution:
    """Return the execution for a run of `steps` steps; the environment variable `UNBRAID_EXECUTION` overrides it."""
    override = os.environ.get("UNBRAID_EXECUTION", "")
    if override and override not in get_args(Execution):
        raise UsageError(f"UNBRAID_EXECUTION must be one of {', '.join(get_args(Execution))}, not '{override}'.")
    if override in ("captured", "recorded") and device.type != "cuda":
        raise UsageError(f"UNBRAID_EXECUTION={override} needs a CUDA device, not {device.type}.")
    if override:
        return override  # type: ignore[return-value]
    if device.type != "cuda":
        return "plain"
    # If one rank fails to record, its plain steps would hang the others, whose recordings wait for its messages.
    if ranks > 1:
        return "compiled"
    return "captured" if steps >= MIN_STEPS_TO_COMPILE else "recorded"


def uses_own_kernels(training: Training, execution: Execution, members: int = 1, ranks: int = 1) -> bool:
    """Return whether kernels of this library compute the steps of a run on CUDA, by its config alone.

    What a cache holds has no influence, so that the same config gives the same numbers. In f32 and f64 members of a
    sweep equal single runs, so both have the same kernels. The environment variable `UNBRAID_KERNELS` overrides it.
    """
    override = os.environ.get("UNBRAID_KERNELS", "")
    if override not in ("", "own", "torch"):
        raise UsageError(f"UNBRAID_KERNELS must be own or torch, not '{override}'.")
    if override == "torch" and compiles(execution):
        raise UsageError("UNBRAID_KERNELS=torch is not for compiled steps; set UNBRAID_EXECUTION=recorded, too.")
    if override:
        return override == "own"
    few = training.steps * training.batch < MIN_IMAGES_FOR_OWN_KERNELS
    short = few and training.steps < MIN_STEPS_FOR_OWN_KERNELS and training.precision in ("bf16", "tf32")
    return compiles(execution) or not (short and members == ranks == 1)


def compiles(execution: Execution) -> bool:
    return execution in ("compiled", "captured")


def records(execution: Execution) -> bool:
    return execution in ("recorded", "captured")


class CompiledFunction:
    """A function that is compiled at its first call; if that fails, it warns and runs uncompiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.plain = function
        self.call: Callable[..., Any] = torch.compile(function, dynamic=False)
        self.called = False

    def __call__(self, *inputs: Any) -> Any:
        if self.called:
            return self.call(*inputs)
        self.called = True
        limits = {"cache_size_limit": MAX_COMPILED_PROGRAMS, "accumulated_cache_size_limit": 4 * MAX_COMPILED_PROGRAMS}
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(limits), _store_more_on_cpu(), _tag_programs():
                # tracing reads the gradient of every tensor, also of activations, which have none
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
                return self.call(*inputs)
        except torch.cuda.OutOfMemoryError:
            raise
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            warnings.warn(f"The step runs uncompiled, and slower: {read_first_line(error)}", stacklevel=2)
            self.call = self.plain
            return self.call(*inputs)


def _store_more_on_cpu() -> AbstractContextManager[Any]:
    """Let Inductor store what a CPU would compute again; on CUDA kernels of our own make the noise."""
    if torch.cuda.is_available():
        return nullcontext()
    from torch._inductor import config  # the compiler, whose import takes seconds

    return config.patch(realize_opcount_threshold=MAX_REPEATED_OPERATIONS)


def _tag_programs() -> AbstractContextManager[Any]:
    """Let the compiler store programs apart that call operators of another version of this library."""
    import torch.compiler.config

    config: Any = torch.compiler.config
    if not hasattr(config, "cache_key_tag"):  # before torch 2.7
        return nullcontext()
    return config.patch(cache_key_tag=f"{config.cache_key_tag} unbraid {hash_code()}".strip())
