r"""Which posteriors of c a training step draws from: the paths of multimodal objectives.

| model                  | paths of a row                                         | decoded from them               |
|------------------------|--------------------------------------------------------|---------------------------------|
| multimodal-partitioned | all; for each m a random subset without m              | x_m: all, and the one without m |
| multimodal-subsampled  | all; each alone; `subsets` random ones                 | x_m: all, alone, the random ones|
| multimodal-subsets     | every subset, or `draws` random ones                   | everything from everything      |
| multimodal-experts     | each alone, `samples` times                            | everything from everything      |
| multimodal-cross       | all; each alone                                        | everything from everything      |
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from unbraid.errors import UsageError
from unbraid.latents.fusion import Gaussian, Mixture, mixture, mixture_of_products, subsets
from unbraid.models.base import model
from unbraid.models.multimodal import Beliefs, Multimodal
from unbraid.noise import Need
from unbraid.types import Noise

SUBSETS = "subsets"
FROZEN = "/frozen"
"""What stands behind a modality's name for a decoding through which only the codes have a gradient."""


def random_subsets(among: Tensor, uniform: Tensor) -> Tensor:
    """One subset of each set [..., M], not empty and each as likely as the others, by a number in (0, 1) [...].

    The number chooses one of 1 to 2^k - 1, whose binary digits say which of the set's k elements are in. An empty set
    only has the empty one.
    """
    most = 2 ** among.sum(-1) - 1
    chosen = torch.minimum(1 + (uniform * most).to(most.dtype), most)
    place = (among.cumsum(-1) - 1).clamp(min=0)
    return among & ((chosen.unsqueeze(-1) >> place) & 1 == 1)


def between(there: Tensor, uniform: Tensor) -> Tensor:
    """Subsets [rows, count, M] of what is there [rows, M], of at least two but not all, by numbers [rows, count].

    Each is as likely as the others; where there is none, the empty set.
    """
    table = subsets(there.shape[-1], there.device)  # [S, M]
    size, every = table.sum(-1), there.unsqueeze(-2)
    fit = (every | ~table).all(-1) & (size > 1) & (size < every.sum(-1))  # [rows, S]
    count = fit.sum(-1, keepdim=True)
    chosen = torch.minimum((uniform * count).to(count.dtype), count - 1).unsqueeze(-1)  # [rows, count, 1]
    picked = fit.unsqueeze(-2) & (fit.cumsum(-1).unsqueeze(-2) == chosen + 1)
    return (picked.unsqueeze(-1) & table).any(-2)


def _alone(there: Tensor) -> Tensor:
    """Each modality by itself [rows, M, M], the empty set for one that is not there."""
    count = there.shape[-1]
    return torch.eye(count, dtype=torch.bool, device=there.device) & there.unsqueeze(-2)


@model("multimodal-partitioned", year=2019, reference="daunhawer2019")
class Partitioned(Multimodal):
    """All modalities together, and for each a random subset of the others that are there.

    Where there are no others, the second path is the first one again.
    """

    @property
    def path_count(self) -> int:
        """All, and one without each modality."""
        return 1 + len(self.names)

    @property
    def routes(self) -> list[list[int]]:
        """From all, and from the others."""
        return [[0, 1 + m] for m in range(len(self.names))]

    def needs(self, batch: int) -> dict[str, Need]:
        """Besides, a number for each random subset."""
        return {**super().needs(batch), SUBSETS: Need("uniform", (batch, len(self.names)))}

    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """[rows, 1 + M, M]."""
        every = there.unsqueeze(-2)
        others = every & ~torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
        drawn = random_subsets(others, noise[SUBSETS])
        return torch.cat([every, torch.where(others.any(-1, keepdim=True), drawn, every)], -2)


@model("multimodal-subsampled", year=2018, reference="wu2018")
class Subsampled(Multimodal):
    """All modalities together, each alone, and random subsets of at least two of them, but not all.

    A row that has fewer than three modalities has no such subset, and its random paths look at nothing.
    """

    def __init__(self, *parts: Any, unimodal: bool = True, subsets: int = 1, **shared: Any) -> None:
        super().__init__(*parts, **shared)
        if subsets < 0:
            raise UsageError(f"subsets must be 0 or above, not {subsets}.")
        self.unimodal = unimodal
        self.drawn_subsets = subsets if len(self.names) > 2 else 0  # of two modalities there is no other subset

    @property
    def path_count(self) -> int:
        """All, each alone, and the random ones."""
        return 1 + len(self.names) * self.unimodal + self.drawn_subsets

    @property
    def routes(self) -> list[list[int]]:
        """From all, from itself, and from every random subset, since any may hold it."""
        random = list(range(self.path_count - self.drawn_subsets, self.path_count))
        return [[0, *([1 + m] if self.unimodal else []), *random] for m in range(len(self.names))]

    def needs(self, batch: int) -> dict[str, Need]:
        """Besides, a number for each random subset."""
        own = {SUBSETS: Need("uniform", (batch, self.drawn_subsets))} if self.drawn_subsets else {}
        return {**super().needs(batch), **own}

    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """[rows, 1 + M + random, M]."""
        made = [there.unsqueeze(-2)] + ([_alone(there)] if self.unimodal else [])
        if self.drawn_subsets:
            made.append(between(there, noise[SUBSETS]))
        return torch.cat(made, -2)


@model("multimodal-subsets", year=2021, reference="sutter2021")
class EverySubset(Multimodal):
    """Every subset of the modalities, or random ones.

    Its bound is that of the mixture of their products, which proposes c where likelihoods are estimated. Whoever gives
    some modalities gets the product of exactly these, as in sutter2021's evaluations.
    """

    def __init__(self, *parts: Any, draws: int | None = None, **shared: Any) -> None:
        super().__init__(*parts, **shared)
        if draws is not None and draws < 1:
            raise UsageError(f"draws must be at least 1, or none for every subset, not {draws}.")
        self.draws = draws

    def proposal(self, beliefs: Beliefs) -> Mixture:
        """The mixture of the products of all subsets of what is there."""
        return mixture_of_products(*beliefs.experts, beliefs.there, self.prior_expert)

    @property
    def path_count(self) -> int:
        """2^M - 1, or as many as are drawn."""
        return 2 ** len(self.names) - 1 if self.draws is None else self.draws

    @property
    def routes(self) -> list[list[int]]:
        """Everything from everything."""
        return [list(range(self.path_count))] * len(self.names)

    def needs(self, batch: int) -> dict[str, Need]:
        """Besides, a number for each random subset."""
        own = {} if self.draws is None else {SUBSETS: Need("uniform", (batch, self.draws))}
        return {**super().needs(batch), **own}

    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """[rows, 2^M - 1 or draws, M]; the empty set in place of one that is not all there."""
        every = there.unsqueeze(-2)
        if self.draws is not None:
            return random_subsets(every.expand(-1, self.draws, -1), noise[SUBSETS])
        table = subsets(len(self.names), there.device)
        return table & (every | ~table).all(-1, keepdim=True)


@model("multimodal-cross", year=2021, reference="lee2021")
class Cross(Multimodal):
    """All modalities together, and each alone."""

    @property
    def path_count(self) -> int:
        """All, and each alone."""
        return 1 + len(self.names)

    @property
    def routes(self) -> list[list[int]]:
        """Everything from everything."""
        return [list(range(self.path_count))] * len(self.names)

    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """[rows, 1 + M, M]."""
        return torch.cat([there.unsqueeze(-2), _alone(there)], -2)


@model("multimodal-experts", year=2019, reference="shi2019")
class Experts(Multimodal):
    """Each modality alone, several times: q(c|x_A) is the mixture of the experts that are there."""

    whole_posterior = False

    def __init__(
        self, *parts: Any, samples: int = 1, gradient: Literal["reparameterised", "dreg"] = "reparameterised"
    ) -> None:
        super().__init__(*parts, prior_expert=False)
        self.samples, self.gradient = samples, gradient

    @property
    def path_count(self) -> int:
        """Draws of one expert next to each other."""
        return len(self.names) * self.samples

    @property
    def routes(self) -> list[list[int]]:
        """Everything from everything."""
        return [list(range(self.path_count))] * len(self.names)

    def paths(self, there: Tensor, noise: Noise) -> Tensor:
        """[rows, M x samples, M]."""
        return _alone(there).repeat_interleave(self.samples, -2)

    def conditional(self, beliefs: Beliefs) -> Mixture:
        """The mixture of the experts that are there."""
        return mixture(*beliefs.experts, beliefs.there)

    def fused(self, beliefs: Beliefs) -> Gaussian:
        """The mixture's mean and variance [rows, D]."""
        return self.conditional(beliefs).moments()

    def decodings(self, c: Tensor, s: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """For doubly reparameterised gradients twice: of detached c, and with nothing but c to learn from."""
        if self.gradient != "dreg":
            return self.along_routes(c, s)
        frozen = self.along_routes(c, {name: value.detach() for name, value in s.items()}, frozen=True)
        return {**self.along_routes(c.detach(), s), **{name + FROZEN: made for name, made in frozen.items()}}
