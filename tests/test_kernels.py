"""Dry runs that skip launches and compile them together; a stand-in plays the part of a Triton kernel."""

import threading

import pytest
import torch

from unbraid.kernels import allows_kernels, compile_ahead, launch, skip_launches, without_kernels
from unbraid.shapes import broadcast_leading


class Kernel:
    """A kernel that adds 1 to its second argument, and notes what it was compiled for."""

    def __init__(self) -> None:
        self.compiled: list[tuple[object, ...]] = []

    def __getitem__(self, grid):
        return lambda source, target, *rest, **constants: target.add_(1)

    def warmup(self, *arguments, grid, **constants):
        self.compiled.append((*arguments, grid, constants))


def call(kernel: Kernel, target: torch.Tensor) -> None:
    launch(kernel, (2,), (torch.ones(3), torch.ones(3)), target, 7, BLOCK=8, writes=(target,))


def test_launch_runs_the_kernel():
    kernel, target = Kernel(), torch.ones(2)
    call(kernel, target)
    assert target.tolist() == [2, 2]
    assert not kernel.compiled


def test_dry_run_writes_zeros_and_compiles_for_stand_ins():
    kernel, target = Kernel(), torch.ones(2)
    with compile_ahead():
        call(kernel, target)
        assert target.tolist() == [0, 0]
        assert not kernel.compiled
    ((sources, stand_in, number, grid, constants),) = kernel.compiled
    assert [source.numel() for source in sources] == [0, 0]
    assert stand_in.numel() == 0 and stand_in.dtype == target.dtype
    assert (number, grid, constants) == (7, (2,), {"BLOCK": 8})


def test_skipped_launches_are_not_compiled():
    kernel = Kernel()
    with skip_launches():
        call(kernel, torch.ones(2))
    assert not kernel.compiled
    after = torch.ones(2)
    call(kernel, after)
    assert after.tolist() == [2, 2]


def test_other_threads_launch_during_a_dry_run():
    kernel, target = Kernel(), torch.ones(2)
    with skip_launches():
        other = threading.Thread(target=call, args=(kernel, target))
        other.start()
        other.join()
    assert target.tolist() == [2, 2]


def test_leading_shapes_broadcast():
    first, second = torch.zeros(4, 1, 3, 2), torch.zeros(5, 7, 9)
    assert broadcast_leading([first, second], trailing=2) == torch.broadcast_shapes((4, 1), (5,))
    assert broadcast_leading([torch.zeros(2, 0), torch.zeros(3, 1, 4)]) == (3, 2)


@pytest.mark.gpu
def test_kernels_are_loaded_before_their_first_launch():
    from unbraid.networks import bernoulli_kernel

    with compile_ahead():
        bernoulli_kernel.bernoulli_log_prob(torch.zeros(3, 5, device="cuda"), torch.ones(3, 5, device="cuda"))
    kernels, *_ = bernoulli_kernel._forward.device_caches[torch.cuda.current_device()]
    assert kernels and all(kernel._run is not None for kernel in kernels.values())


def test_a_thread_that_does_without_kernels_leaves_the_others_alone():
    seen: list[bool] = []
    with without_kernels():
        assert not allows_kernels()
        with without_kernels(False):
            assert allows_kernels()
        other = threading.Thread(target=lambda: seen.append(allows_kernels()))
        other.start()
        other.join()
    assert seen == [True] and allows_kernels()
