"""The latent space of a model in stages: the earlier stage's blocks under new names, then the stage's own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.space import Space

EARLIER = "c"
"""Name of the earlier stage's only block, and prefix of the names of several."""


class StackedSpace(Space):
    """C and Z side by side; `own` is the space of Z alone.

    C keeps its prior, a learned one included, and its groups; beside those, the stage's own variables are one group.
    """

    def __init__(self, earlier: Space, own: Space) -> None:
        alone = len(earlier.blocks) == 1
        self.names = {name: EARLIER if alone else f"{EARLIER}_{name}" for name in earlier.blocks}
        self._own = own
        moved = {self.names[name]: block for name, block in earlier.blocks.items()}
        for name in own.blocks:
            if name in moved:
                raise UsageError(
                    f"The earlier stage's latents are called {name} here; choose other latents for this stage."
                )
        learned = None if earlier.learned is None else earlier.learned.rename_blocks(self.names, own.blocks)
        super().__init__({**moved, **own.blocks}, _tree_of_both(earlier, own), learned)

    @property
    def last_stage(self) -> Space:
        return self._own

    def rename_blocks(self, by_block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the earlier stage gives by block, under the names that its blocks have here."""
        return {self.names.get(name, name): value for name, value in by_block.items()}


def _tree_of_both(earlier: Space, own: Space) -> Any:
    """Return a tree over the leaves of both; None if neither has groups."""
    if len(earlier.levels) == len(own.levels) == 2:
        return None
    return (*earlier.tree, _shifted(own.tree, earlier.leaves)) if own.leaves else earlier.tree


def _shifted(tree: Any, by: int) -> Any:
    return tree + by if isinstance(tree, int) else tuple(_shifted(node, by) for node in tree)
