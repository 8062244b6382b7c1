r"""Several processes train one run: each computes a share of every batch, and they agree on everything else.

torchrun starts the processes ("ranks"); a world of one costs nothing. The contract:

- `batch` is the batch of the whole world, and noise is drawn for all of it. The result does not depend on the number
  of processes.
- A rank runs the model on its own consecutive rows. `decoded`, `extra` and `batch.x` hold only those, and a term on
  them is their mean.
- `posterior`, `sample`, `prior`, `batch.index` and the noise of the objective hold the rows of all ranks, in order. A
  term on them covers the whole batch, and every rank computes the same value.

Why averaged gradients are those of the whole batch: the mean over ranks of the losses L_r *is* the loss L of the whole
batch (means of equal shares average to the mean; the other terms are equal). Differentiating through the gather gives
rank r the gradient of sum_s L_s with respect to its own copy of the parameters; the sum over copies, divided by the
number of ranks, is dL/dtheta, for parameters in front of the gather and behind it alike.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from unbraid.errors import RunError, UnbraidError, UsageError
from unbraid.printable import shorten
from unbraid.training.collectives import stack_over_ranks, sum_over_ranks
from unbraid.types import Output

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Backends by device; ranks agree by numbers in main memory, which needs gloo."""

MAX_WAIT = timedelta(minutes=10)
"""Longest wait for another rank. If a rank dies, torchrun ends the others at once."""

STEPS_BETWEEN_AGREEMENTS = {"cpu": 1, "cuda": 16}
"""On CUDA the host runs ahead of the device; agreeing at every step would hold it up."""

_worlds_joined = 0


class StoppedElsewhereError(UnbraidError):
    """This rank stops because another one did; the other one says why."""

    exit_code = 130


class ProcessRank(NamedTuple):
    """The number of this process, and the number of processes, in all and on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def read_launcher() -> ProcessRank:
    """Return the rank that torchrun gave this process; without torchrun it is the only one."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return ProcessRank(0, 1, 0, 1)
    rank, size = _read_number("RANK"), _read_number("WORLD_SIZE")
    if not 0 <= rank < max(size, 1):
        raise UsageError(f"RANK={rank} is no rank of WORLD_SIZE={size} processes; unset both, or start with torchrun.")
    return ProcessRank(rank, max(size, 1), _read_number("LOCAL_RANK"), max(1, _read_number("LOCAL_WORLD_SIZE")))


def _read_number(name: str) -> int:
    """Return the number in an environment variable that torchrun sets, 0 if it is not set."""
    text = os.environ.get(name, "0").strip()
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UsageError(f"{name}={shorten(text)} is not a whole number; unset it, or start with torchrun.")
    return int(text)


@dataclass(frozen=True)
class World:
    """One of `size` processes that train a run together."""

    rank: int = 0
    size: int = 1
    steps_between_agreements: int = 1

    @property
    def leads(self) -> bool:
        """True for the rank that writes files and prints; the others only compute."""
        return self.rank == 0

    def check_divisible(self, batch: int) -> None:
        """Raise a `UsageError` if a batch does not divide into equal shares."""
        if batch % self.size:
            raise UsageError(
                f"batch={batch} cannot be shared by {self.size} processes; choose a multiple of {self.size}."
            )

    def take_rows(self, tensor: Tensor) -> Tensor:
        """Return this rank's rows of a tensor [member, batch, …]."""
        if self.size == 1:
            return tensor
        rows = tensor.shape[1] // self.size
        return tensor.narrow(1, self.rank * rows, rows)

    def gather(self, out: Output) -> Output:
        """Return an output whose posterior, sample and prior hold the rows of all ranks; differentiable."""
        rows = [*out.sample.values(), *out.posterior.values()]
        if self.size == 1 or not rows:  # a flow has only densities, of this rank's rows
            return out
        like = rows[0]
        prior = {n: t for n, t in out.prior.items() if t.ndim == like.ndim and t.shape[1] == like.shape[1]}
        flat, structure = tree_flatten((out.posterior, out.sample, prior))
        posterior, sample, prior = tree_unflatten(self._gather_rows(flat), structure)
        return Output(posterior, {**out.prior, **prior}, sample, out.decoded, out.extra)

    def _gather_rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors [member, share, …] as [member, batch, …], by one message."""
        packed = torch.cat([t.flatten(2) for t in tensors], -1)
        whole = stack_over_ranks(packed, self.size).movedim(0, 1).flatten(1, 2)
        parts = whole.split([t.shape[2:].numel() for t in tensors], -1)
        return [part.unflatten(-1, t.shape[2:]) for part, t in zip(parts, tensors, strict=True)]

    def average(self, tensor: Tensor) -> Tensor:
        """Return the mean over the ranks."""
        return tensor if self.size == 1 else sum_over_ranks(tensor) / self.size

    def average_all(self, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Return each tensor's mean over the ranks, by one message; None must be None on every rank."""
        present = [tensor for tensor in tensors if tensor is not None]
        if self.size == 1 or not present:
            return tensors
        flat = self.average(torch.cat([tensor.flatten() for tensor in present]))
        parts = iter(flat.split([tensor.numel() for tensor in present]))
        return [None if tensor is None else next(parts).view(tensor.shape) for tensor in tensors]

    def maximum(self, *numbers: float) -> tuple[float, ...]:
        """Return the maximum of each number over the ranks; all ranks leave this call together."""
        if self.size == 1:
            return numbers
        largest = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return tuple(largest.tolist())

    def agree(self, step: int, *numbers: float) -> tuple[float, ...]:
        """Return `maximum` at the steps at which the ranks agree, and zeros in between."""
        return self.maximum(*numbers) if step % self.steps_between_agreements == 0 else (0.0,) * len(numbers)

    def wait(self) -> None:
        """Wait for the other ranks."""
        self.maximum(0.0)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Raise on every rank if the block fails on one. Inside, no rank may wait for another one."""
        if self.size == 1:
            yield
            return
        failed = True
        try:
            yield
            failed = False
        finally:
            if self.maximum(float(failed))[0] and not failed:
                raise StoppedElsewhereError("Another process of this run could not go on.")

    def check_equal(self, value: str, message: str) -> None:
        """Raise a `RunError` if the ranks hold different values."""
        if self.size > 1:
            digest = float(int.from_bytes(hashlib.sha256(value.encode()).digest()[:6], "big"))
            largest, negated = self.maximum(digest, -digest)
            if largest != -negated:
                raise RunError(message)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the values of rank 0."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, src=0)
                tensor.copy_(values)


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Connect to the other processes that torchrun started, for the length of the block.

    An existing process group is used and left open; on CUDA it must have both gloo and nccl.
    """
    rank, size, *_ = read_launcher()
    if size == 1:
        yield World()
        return
    if device.type not in BACKENDS:
        raise UsageError(f"Several processes train on cpu or cuda, not on {device.type}.")
    world = World(rank, size, STEPS_BETWEEN_AGREEMENTS[device.type])
    if dist.is_initialized():
        yield world
        return
    _connect(world, device)
    try:
        yield world
    except UnbraidError:  # all ranks raise it; after any other error, closing could wait for ranks that are gone
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _connect(world: World, device: torch.device) -> None:
    global _worlds_joined
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, _, _ = next(iter(dist.rendezvous("env://", timeout=MAX_WAIT)))
    # A second run of the same processes must not find the addresses that the first one left.
    store = dist.PrefixStore(f"unbraid/{_worlds_joined}", store)
    _worlds_joined += 1
    dist.init_process_group(
        BACKENDS[device.type], store=store, rank=world.rank, world_size=world.size, timeout=MAX_WAIT
    )
