"""The latent space of a model in stages: the earlier stage's blocks C under new names, then its own blocks Z."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.space import Space

EARLIER_BLOCK = "c"
"""Name of the earlier stage's only block, and prefix of the names of several."""


class StackedSpace(Space):
    """C, then Z.

    C keeps its groups and its prior, also a learned one. If one of the stages has groups, Z is one more group.
    """

    def __init__(self, earlier: Space, later: Space) -> None:
        single = len(earlier.blocks) == 1
        self.names = {name: EARLIER_BLOCK if single else f"{EARLIER_BLOCK}_{name}" for name in earlier.blocks}
        self._later = later
        renamed = {self.names[name]: block for name, block in earlier.blocks.items()}
        for name in later.blocks:
            if name in renamed:
                raise UsageError(f"{name} names latents of the earlier stage here; choose other latents for this one.")
        learned = None if earlier.learned is None else earlier.learned.rename_blocks(self.names, later.blocks)
        super().__init__({**renamed, **later.blocks}, _join_trees(earlier, later), learned)

    @property
    def last_stage(self) -> Space:
        return self._later

    def rename_blocks(self, by_block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the earlier stage's blocks under their names in this space."""
        return {self.names.get(name, name): value for name, value in by_block.items()}


def _join_trees(earlier: Space, later: Space) -> Any:
    if len(earlier.levels) == len(later.levels) == 2:  # no groups
        return None
    return (*earlier.tree, _shift(later.tree, earlier.leaves)) if later.leaves else earlier.tree


def _shift(tree: Any, by: int) -> Any:
    return tree + by if isinstance(tree, int) else tuple(_shift(node, by) for node in tree)
