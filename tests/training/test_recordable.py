"""Steps hold nothing that a CUDA graph cannot record: no copy from the host and no read-back (checked on the CPU)."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.execution import METHODS
from unbraid.config import Choice
from unbraid.data import load
from unbraid.training import configure
from unbraid.training.prepare import prepare

FORBIDDEN = {"lift_fresh", "lift_fresh_copy", "_local_scalar_dense", "nonzero", "masked_select"}


class StepWatch(TorchDispatchMode):
    """Collects operators that cannot be recorded, and index tensors that no operator has made."""

    def __init__(self):
        super().__init__()
        self.forbidden, self.made, self.indices = [], set(), {}
        self.alive = []  # keeps the memory of every result, so that no address is used twice

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in FORBIDDEN:
            self.forbidden.append(name)
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            for index in args[1]:
                if index is not None and index.untyped_storage().data_ptr() not in self.made:
                    self.indices[index.untyped_storage().data_ptr()] = index
        out = function(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.made.add(leaf.untyped_storage().data_ptr())
                self.alive.append(leaf)
        return out


@pytest.mark.parametrize(("recipe", "settings"), METHODS)
def test_a_step_copies_nothing_from_the_host_and_reads_nothing_back(recipe, settings):
    sprites = load("sprites-small")
    sizes = {} if "latents" in settings else {"z": 3}
    small = {**sizes, "batch": 8, "steps": 100, "encoder.hidden": (8,), "decoder.hidden": (8,), **settings}
    configs = [configure(recipe, Choice("sprites-small"), sprites, {**small, "seed": seed}) for seed in range(2)]
    state = prepare(configs, sprites)
    state.advance()
    state.execution = "recorded"  # the step is a tensor, as on a GPU
    watches = [StepWatch(), StepWatch()]
    for watch in watches:
        with watch:
            state._step(tuple(True for _ in state.players))
        assert not watch.forbidden
    # An index that stays between steps lives on the device; a list becomes another tensor at every step.
    assert watches[1].indices.keys() <= watches[0].indices.keys()
