r"""Origin and unit of a stage's own Normal latents (ours): an exact last step of its training.

A decoder with a bias wherever z enters draws the same from z as another one does from (z - m) / s, coordinate by
coordinate, and an encoder gives either. Of all these coordinates, in which every reconstruction is the same,

    m = E[mu(x)],    s^2 = E[(mu(x) - m)^2 + sigma(x)^2]

have the smallest KL(q(z|x) || N(0, 1)): codes then have mean 0 and second moment 1. Gradients find them slowly, since
what moves all codes at once is lost in the noise of the reconstruction: after 800 steps on Cars3D the five coordinates
of a refiner's codes had a mean 5 to 6 units away from 0, and draws from the prior were no images (`results/frame`).
Training goes on in the networks' own coordinates; its KL is that of before this step.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unbraid.latents import Normal, Space

MAX_ROWS_TO_FIT, ROWS_AT_ONCE = 4_096, 256


class Frame(nn.Module):
    """Origin and unit of each coordinate of a code; those of blocks other than Normal ones never change."""

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
        """Return an encoder's posteriors, by block, in these coordinates."""
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
        """Move to the coordinates that are best for these posteriors, which are in the present ones."""
        every = [{name: each[name].cpu().double() for name in self.normal} for each in posteriors]  # MPS has no doubles
        for name, place in self.normal.items():
            mean, log_variance = torch.cat([each[name] for each in every]).chunk(2, -1)
            spread = (mean.var(0, correction=0) + log_variance.exp().mean(0)).sqrt()
            self.origin[place] += self.unit[place] * mean.mean(0).to(self.origin)
            self.unit[place] *= spread.to(self.unit)


def choose_rows_to_fit(rows: Tensor) -> tuple[Tensor, ...]:
    """Return evenly spaced rows to choose coordinates by, in parts that are encoded at once."""
    return rows[:: -(-len(rows) // MAX_ROWS_TO_FIT)].split(ROWS_AT_ONCE)


def _add_missing_buffers(frame: nn.Module, state_dict: dict[str, Tensor], prefix: str, *others: object) -> None:
    """Let runs load that were trained before there was a frame: they have the networks' own coordinates."""
    for name, buffer in frame.named_buffers():
        state_dict.setdefault(prefix + name, buffer)
