r"""Several processes train one run: each computes a share of every batch, and they agree on everything else.

torchrun starts the processes ("ranks"); a world of one is the ordinary case and costs nothing. The contract:

- `batch` is the batch of the whole world, and noise is drawn for all of it, so a run does not depend on how many
  processes train it.
- A rank runs the model on its own rows, consecutive ones. `decoded`, `extra` and `batch.x` only hold those, and a term
  on them is a mean over them.
- `posterior`, `sample`, `prior` and `batch.index` hold the rows of all ranks, in order; so does the noise that an
  objective asks for. A term on them is one of the whole batch, and every rank computes the same.

Why averaged gradients are those of the whole batch: the mean over ranks of the losses L_r *is* the loss L of the whole
batch (means of equal shares average to the mean; the other terms are equal). Differentiating through the gather gives
rank r the gradient of sum_s L_s with respect to its own copy of the parameters; the sum over copies, divided by the
number of ranks, is dL/dtheta, for parameters in front of the gather and behind it alike.
"""

import hashlib
import os
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
from unbraid.training.collectives import stack_over_ranks, sum_over_ranks
from unbraid.types import Output

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""By device. Agreements are numbers in main memory, so gloo is there in any case."""

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for another one. A rank that dies is noticed at once: torchrun then ends the others."""

MEET_EVERY = {"cpu": 1, "cuda": 16}
"""Steps between two agreements: on CUDA the host runs ahead of the device, and waiting for others would hold it up."""

_meetings = 0


class StoppedElsewhereError(UnbraidError):
    """This rank stops because another one did, which says why."""

    exit_code = 130


class Launched(NamedTuple):
    """What torchrun says about this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def launched() -> Launched:
    """Which process of how many this one is, here and on this machine; the only one if nobody says otherwise."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return Launched(0, 1, 0, 1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = (os.environ.get(name, 0) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    return Launched(rank, size, int(local_rank), max(1, int(local_size)))


@dataclass(frozen=True)
class World:
    """One of `size` processes that train a run together."""

    rank: int = 0
    size: int = 1
    meet_every: int = 1

    @property
    def leads(self) -> bool:
        """Whether this rank writes and tells; the others only compute."""
        return self.rank == 0

    # rows

    def refuse_indivisible(self, batch: int) -> None:
        """A `UsageError` for a batch that does not fall into equal shares."""
        if batch % self.size:
            raise UsageError(f"batch={batch} cannot be shared by {self.size} processes; choose a multiple of them.")

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor [member, batch, …]."""
        if self.size == 1:
            return tensor
        rows = tensor.shape[1] // self.size
        return tensor.narrow(1, self.rank * rows, rows)

    def gathered(self, out: Output) -> Output:
        """An output whose posterior, sample and prior hold the rows of all ranks; differentiable."""
        rows = [*out.sample.values(), *out.posterior.values()]
        if self.size == 1 or not rows:  # a flow has densities alone, which are of this rank's rows
            return out
        like = rows[0]
        prior = {n: t for n, t in out.prior.items() if t.ndim == like.ndim and t.shape[1] == like.shape[1]}
        flat, structure = tree_flatten((out.posterior, out.sample, prior))
        posterior, sample, prior = tree_unflatten(self._gathered_rows(flat), structure)
        return Output(posterior, {**out.prior, **prior}, sample, out.decoded, out.extra)

    def _gathered_rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors [member, share, …] as [member, batch, …], in one message."""
        packed = torch.cat([t.flatten(2) for t in tensors], -1)
        whole = stack_over_ranks(packed, self.size).movedim(0, 1).flatten(1, 2)
        parts = whole.split([t.shape[2:].numel() for t in tensors], -1)
        return [part.unflatten(-1, t.shape[2:]) for part, t in zip(parts, tensors, strict=True)]

    # means

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the ranks."""
        return tensor if self.size == 1 else sum_over_ranks(tensor) / self.size

    def means(self, tensors: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Each tensor's mean over the ranks, in one message; what is None is None on every rank."""
        present = [tensor for tensor in tensors if tensor is not None]
        if self.size == 1 or not present:
            return tensors
        flat = self.mean(torch.cat([tensor.flatten() for tensor in present]))
        parts = iter(flat.split([tensor.numel() for tensor in present]))
        return [None if tensor is None else next(parts).view(tensor.shape) for tensor in tensors]

    # agreement

    def most(self, *numbers: float) -> tuple[float, ...]:
        """The largest of each number over the ranks; all ranks leave this call together."""
        if self.size == 1:
            return numbers
        largest = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return tuple(largest.tolist())

    def agreed(self, step: int, *numbers: float) -> tuple[float, ...]:
        """As `most`, at the steps at which the ranks meet; zeros in between."""
        return self.most(*numbers) if step % self.meet_every == 0 else (0.0,) * len(numbers)

    def meet(self) -> None:
        """Wait for the other ranks."""
        self.most(0.0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """All ranks get through this block, or none does. Inside, no rank may wait for another one."""
        if self.size == 1:
            yield
            return
        failed = True
        try:
            yield
            failed = False
        finally:
            if self.most(float(failed))[0] and not failed:
                raise StoppedElsewhereError("Another process of this run could not go on.")

    def refuse_difference(self, value: str, message: str) -> None:
        """A `RunError` if the ranks hold different values."""
        if self.size > 1:
            digest = float(int.from_bytes(hashlib.sha256(value.encode()).digest()[:6], "big"))
            largest, negated = self.most(digest, -digest)
            if largest != -negated:
                raise RunError(message)

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the first one's values, in place."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, src=0)
                tensor.copy_(values)


@contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that torchrun has made this process a part of, connected as long as the block lasts.

    A process group that exists already is used and left as it is; on CUDA it must have gloo besides nccl.
    """
    rank, size = launched()[:2]
    if size == 1:
        yield World()
        return
    if device.type not in BACKENDS:
        raise UsageError(f"Several processes train on cpu or cuda, not on {device.type}.")
    world = World(rank, size, MEET_EVERY[device.type])
    if dist.is_initialized():
        yield world
        return
    _connect(world, device)
    try:
        yield world
    except UnbraidError:  # every rank gets here; after anything else, closing could wait for ranks that are gone
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _connect(world: World, device: torch.device) -> None:
    global _meetings
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, _, _ = next(iter(dist.rendezvous("env://", timeout=PATIENCE)))
    # A second run of the same processes must not find the addresses that the first one left.
    store = dist.PrefixStore(f"unbraid/{_meetings}", store)
    _meetings += 1
    dist.init_process_group(
        BACKENDS[device.type], store=store, rank=world.rank, world_size=world.size, timeout=PATIENCE
    )
