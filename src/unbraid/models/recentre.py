r"""Origin and unit of a stage's own Normal latents (ours): an exact last step of its training.

If a decoder has a bias wherever z enters, it can take (z - m) / s instead of z, coordinate by coordinate, and the
encoder can give it. Reconstructions are the same in all these coordinates. Of all of them,

    m = E[mu(x)],    s^2 = E[(mu(x) - m)^2 + sigma(x)^2]

have the smallest KL(q(z|x) || N(0, 1)): codes then have mean 0 and second moment 1. Gradients find them slowly, because
the noise of the reconstruction hides a common shift of all codes: after 800 steps on Cars3D the five coordinates of a
refiner's codes had means 5 to 6 units away from 0, and draws from the prior were no images (`results/frame`). Training
runs in the networks' own coordinates, and its KL is the one before this step.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unbraid.latents import Normal, Space

MAX_ROWS_TO_FIT, ROWS_PER_CHUNK = 4_096, 256


class Frame(nn.Module):
    """Origin and unit of each coordinate of a code; only those of Normal blocks change."""

    origin: Tensor
    unit: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.normal, place = dict[str, slice](), 0
        for name, block in space.blocks.items():
            if type(block) is Normal:
                self.normal[name] = slice(place, place + block.width)
            place += block.width
        self.register_buffer("origin", torch.zeros(space.width))
        self.register_buffer("unit", torch.ones(space.width))
        self.register_load_state_dict_pre_hook(_add_missing_buffers)

    def posterior(self, by_block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return an encoder's posteriors by block, in these coordinates."""
        moved = dict(by_block)
        for name, place in self.normal.items():
            mean, log_variance = by_block[name].chunk(2, -1)
            unit = self.unit[place]
            moved[name] = torch.cat([(mean - self.origin[place]) / unit, log_variance - 2 * unit.log()], -1)
        return moved

    def code(self, z: Tensor) -> Tensor:
        """Return a decoder's input for codes in these coordinates."""
        return z * self.unit + self.origin

    @torch.no_grad()
    def fit(self, posteriors: Iterable[Mapping[str, Tensor]]) -> None:
        """Move to the best coordinates for these posteriors, which are in the present coordinates."""
        every = [{name: each[name].cpu().double() for name in self.normal} for each in posteriors]  # MPS has no doubles
        for name, place in self.normal.items():
            mean, log_variance = torch.cat([each[name] for each in every]).chunk(2, -1)
            spread = (mean.var(0, correction=0) + log_variance.exp().mean(0)).sqrt()
            self.origin[place] += self.unit[place] * mean.mean(0).to(self.origin)
            self.unit[place] *= spread.to(self.unit)


def choose_rows_to_fit(rows: Tensor) -> tuple[Tensor, ...]:
    """Return at most `MAX_ROWS_TO_FIT` evenly spaced rows, in chunks."""
    return rows[:: -(-len(rows) // MAX_ROWS_TO_FIT)].split(ROWS_PER_CHUNK)


def _add_missing_buffers(frame: nn.Module, state_dict: dict[str, Tensor], prefix: str, *others: object) -> None:
    """Load runs from before frames existed, which use the networks' own coordinates."""
    for name, buffer in frame.named_buffers():
        state_dict.setdefault(prefix + name, buffer)
