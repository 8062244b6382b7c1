r"""Bounds on log p(x_1, …, x_M) with a shared latent c and each modality's own s_m; x_A is what is there of a row.

With L(x_m; S) = E_{q(c|x_S) q(s_m|x_m)} log p(x_m|c, s_m) and K(S) = beta_c KL(q(c|x_S) || p(c)), all maximise a sum
over subsets S of A:

    partitioned-mvae   sum_m [1/2 L(x_m; A) + 1/2 L(x_m; S_m)] - K(A), S_m random without m          (daunhawer2019)
    mvae               sum_S [sum_{m in S} L(x_m; S) - K(S)], S = A, each m alone, and random ones   (wu2018)
    dmvae              sum_S [sum_{m in A} L(x_m; S) - K(S)], S = A and each m alone                 (lee2021)
    mopoe              mean_S [sum_{m in A} L(x_m; S) - K(S)], S = every subset                      (sutter2021)

and subtract beta_m KL(q(s_m|x_m) || p(s_m)) as often as a bound that is summed has x_m in it. q(c|x_S) is the product
of the experts of S. Rows count with what they have: a modality that is missing adds nothing.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from unbraid.data.factors import FactorDataset
from unbraid.density.density_ratio import Discriminator, refuse_no_layers
from unbraid.errors import UsageError
from unbraid.latents import Space
from unbraid.models.multimodal import MASKS, SHARED, private
from unbraid.noise import Need
from unbraid.objectives.base import Context, objective
from unbraid.objectives.modalities import OfModalities, Value, nats, path_kl, used_paths
from unbraid.types import Batch, Output, Player, Terms, Weight

ORDER = "order/shared"
JOINT, SHUFFLED = 0, 1
SMALLEST_BATCH = 4
PAIRS = {"data": "sprites-pairs", "data_size": 16, "data_orientations": 3, "data_positions": 3, "z": None, "c": 3}
"""Of a small run: data, and latents."""

SHARES = {"both": (0.5, 0.5), "full": (1.0, 0.0), "subset": (0.0, 1.0)}


@objective(
    "partitioned-mvae",
    model="multimodal-partitioned",
    year=2019,
    reference="daunhawer2019",
    defaults={"c": 5, "s": 5},
    trial={**PAIRS, "s": 2, "alone": "m2", "penalty": "ratio", "width": 16, "depth": 2},
)
class PartitionedMVAE(OfModalities):
    """Partitioned MVAE: each modality is reconstructed from its own s_m, and from c of all and of others without it.

    `reconstruct` says from which c; `beta_subsets` weighs the mean KL of the random subsets, too. `alone` names the one
    modality whose KL(s_m) has the weight `beta_alone` in place of `beta_m`. `penalty=ratio` adds `tc` TC(c, s_m), each
    by a discriminator that is trained at the same time, with `depth` layers of `width`.
    """

    def __init__(
        self,
        *,
        alone: str | None = None,
        beta_alone: Weight = 1.0,
        reconstruct: Literal["both", "full", "subset"] = "both",
        beta_subsets: Weight = 0.0,
        penalty: Literal["none", "ratio"] = "none",
        tc: Weight = 1.0,
        width: int = 1000,
        depth: int = 5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if alone in self.betas:
            raise UsageError(f"alone={alone} and betas both weigh KL(s_{alone}); leave one of them out.")
        if alone is not None:
            self.betas[alone] = beta_alone
        elif not isinstance(beta_alone, Tensor) and beta_alone != 1.0:
            raise UsageError(f"beta_alone={beta_alone} is the weight of one modality; name it, as alone=m2.")
        if penalty == "none" and (tc, width, depth) != (1.0, 1000, 5):
            raise UsageError("tc, width and depth are those of the penalty on TC; ask for it, as penalty=ratio.")
        refuse_no_layers(width, depth)
        self.shares, self.beta_subsets, self.tc = SHARES[reconstruct], beta_subsets, tc
        self.penalised, self.width, self.depth = penalty == "ratio", width, depth

    def suits(self, dataset: FactorDataset, space: Space) -> None:
        """Only what a modality has of its own can depend on c."""
        super().suits(dataset, space)
        if self.penalised and len(space.blocks) < 2:
            raise UsageError("penalty=ratio is on the dependence of c and each s_m, so s must be at least 1.")

    def players(self) -> list[Player]:
        """The model, and with a penalty then the discriminators."""
        model = Player("model", ("model.",), self.modal_terms)
        settings = {"lr": 1e-4, "betas": (0.5, 0.9)}
        other = Player("discriminator", ("objective.discriminator_",), self.discriminator_terms, optimizer=settings)
        return [model, other] if self.penalised else [model]

    def networks(self, space: Space) -> dict[str, nn.Module]:
        """With a penalty, a discriminator of c and each s_m."""
        shared = space.blocks[SHARED].width
        return {
            f"discriminator_{name}": Discriminator(shared + block.width, width=self.width, depth=self.depth)
            for name, block in space.blocks.items()
            if self.penalised and name != SHARED
        }

    def needs(self, batch: int, space: Space) -> dict[str, Need]:
        """With a penalty, numbers whose order permutes c in the batch's second half, for each s_m."""
        if not self.penalised:
            return {}
        if batch < SMALLEST_BATCH:
            raise UsageError(f"penalty=ratio permutes half of a batch: it needs {SMALLEST_BATCH} rows, not {batch}.")
        return {ORDER: Need("uniform", (batch - batch // 2, len(space.blocks) - 1))}

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The bound of daunhawer2019 (eq. 2, section 3.2), and the penalty."""
        terms: dict[str, Value] = {}
        for name, loss in nats(out, batch, context).items():
            for label, part, share in zip(
                ("reconstruction", "cross"), loss.mean(1).unbind(-1), self.shares, strict=True
            ):
                terms[f"{label}_{name}"] = (part, share * self.weight(name))
        kl = path_kl(out, context.space).mean(1)  # [member, paths]
        beta, subsets = (self.annealed(each, context) for each in (self.beta_c, self.beta_subsets))
        terms |= {"kl_c": (kl[..., 0], beta), "kl_c_subsets": (kl[..., 1:].mean(-1), subsets)}
        terms |= self.own(out, context)
        for name, there in self._private(out, context).items() if self.penalised else ():
            logits = _logits(context, name, torch.cat([out.sample[SHARED], out.sample[name]], -1))
            terms[f"tc_{name}/ratio"] = (_mean(logits[..., JOINT] - logits[..., SHUFFLED], there), self.tc)
        return Terms(terms)

    def discriminator_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """Cross-entropies of telling the first half's (c, s_m) from the second half's with c permuted.

        Rows that lack x_m have nothing to say about s_m: c is permuted among those that have it.
        """
        c, terms = out.sample[SHARED].detach(), {}
        half = c.shape[-2] // 2
        for place, (name, there) in enumerate(self._private(out, context).items()):
            order = _order_among(there[..., half:], context.noise[ORDER][..., place]).unsqueeze(-1)
            other = c[..., half:, :].gather(-2, order.expand(*order.shape[:-1], c.shape[-1]))
            codes = torch.cat([torch.cat([c[..., :half, :], other], -2), out.sample[name].detach()], -1)
            logits = _logits(context, name, codes).log_softmax(-1)
            joint = _mean(logits[..., :half, JOINT], there[..., :half])
            shuffled = _mean(logits[..., half:, SHUFFLED], there[..., half:])
            terms[f"cross_entropy_{name}"] = (-0.5 * (joint + shuffled), 1.0)
        return Terms(terms)

    @staticmethod
    def _private(out: Output, context: Context) -> dict[str, Tensor]:
        """Which rows have the modality of each private block [member, rows], as numbers."""
        there = zip(context.likelihoods, out.posterior[MASKS][..., 0, :].unbind(-1), strict=True)
        return {private(name): mask for name, mask in there if private(name) in context.space.blocks}


def _mean(values: Tensor, there: Tensor) -> Tensor:
    """Mean [member] over the rows [member, rows] that are there, 0 without any."""
    return (values * there).sum(-1) / there.sum(-1).clamp(min=1.0)


def _order_among(there: Tensor, uniform: Tensor) -> Tensor:
    """A permutation [..., rows] that exchanges rows that are there with each other, and those that are not."""
    lacking = 1 - there
    places = lacking.argsort(dim=-1, stable=True)
    return torch.empty_like(places).scatter(-1, places, (uniform + lacking).argsort(dim=-1, stable=True))


def _logits(context: Context, name: str, codes: Tensor) -> Tensor:
    """Whatever the networks compute in, densities are as precise as the codes."""
    return context.apply(f"discriminator_{name}", codes).to(codes.dtype)


@objective(
    "mvae",
    model="multimodal-subsampled",
    year=2018,
    reference="wu2018",
    defaults={"c": 10, "s": 0},
    trial={**PAIRS, "s": 0},
)
class MVAE(OfModalities):
    """MVAE: the joint bound, the bound of each modality alone, and those of random subsets, by products of experts.

    `subsets` random ones of at least two modalities, but not all that a row has; none where it has two only.
    Without them and with `unimodal=false` it is the joint bound.
    """

    def __init__(self, *, unimodal: bool = True, **shared: Any) -> None:
        super().__init__(**shared)
        self.unimodal = unimodal

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """A sum of bounds, each on what its subset holds."""
        count, first = len(context.likelihoods), 1 + self.unimodal
        holds, terms, again = out.posterior[MASKS], {}, {}
        random = holds[..., 1 + count * self.unimodal :, :]  # [member, rows, random, M]
        for m, (name, loss) in enumerate(nats(out, batch, context).items()):
            parts = {"reconstruction": loss[..., 0].mean(-1)}
            if self.unimodal:
                parts["unimodal"] = loss[..., 1].mean(-1)
            if random.shape[-2]:
                parts["subsets"] = (loss[..., first:] * context.part(random)[..., m]).sum(-1).mean(-1)
            terms |= {f"{label}_{name}": (part, self.weight(name)) for label, part in parts.items()}
            again[name] = self.unimodal + random[..., m].sum(-1)
        kl = path_kl(out, context.space).mean(1)
        terms["kl_c"] = (kl[..., 0], self.annealed(self.beta_c, context))
        if kl.shape[-1] > 1:
            terms["kl_c_subsets"] = (kl[..., 1:].sum(-1), self.annealed(self.beta_c, context))
        return Terms({**terms, **self.own(out, context, again)})


@objective(
    "dmvae",
    model="multimodal-cross",
    year=2021,
    reference="lee2021",
    defaults={"c": 5, "s": 5},
    trial={**PAIRS, "s": 2},
)
class DMVAE(OfModalities):
    """DMVAE: everything from c of all modalities, and again from c of each of them alone, with s_m of its own."""

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """A sum of bounds, each on everything that is there."""
        used, terms = used_paths(out), {}  # [member, rows, 1 + M]
        for name, loss in nats(out, batch, context).items():
            cross = (loss * context.part(used))[..., 1:].sum(-1)
            terms[f"reconstruction_{name}"] = (loss[..., 0].mean(-1), self.weight(name))
            terms[f"cross_{name}"] = (cross.mean(-1), self.weight(name))
        kl = path_kl(out, context.space).mean(1)
        beta = self.annealed(self.beta_c, context)
        terms |= {"kl_c": (kl[..., 0], beta), "kl_c_unimodal": (kl[..., 1:].sum(-1), beta)}
        again = dict.fromkeys(context.likelihoods, used[..., 1:].sum(-1))
        return Terms({**terms, **self.own(out, context, again)})


@objective(
    "mopoe",
    model="multimodal-subsets",
    year=2021,
    reference="sutter2021",
    defaults={"c": 10, "s": 0},
    trial={**PAIRS, "s": 0},
)
class MoPoE(OfModalities):
    """MoPoE-VAE: everything from the product of experts of every subset of the modalities, on average.

    `draws` random subsets per row stand for all of them; none takes all 2^M - 1, without noise from the choice.
    """

    def modal_terms(self, out: Output, batch: Batch, context: Context) -> Terms:
        """The mean over subsets of their bounds on everything that is there."""
        used = used_paths(out)
        share = used / used.sum(-1, keepdim=True).clamp(min=1.0)  # [member, rows, paths]
        terms: dict[str, Value] = {
            f"reconstruction_{name}": ((loss * context.part(share)).sum(-1).mean(-1), self.weight(name))
            for name, loss in nats(out, batch, context).items()
        }
        terms["kl_c"] = ((path_kl(out, context.space) * share).sum(-1).mean(-1), self.annealed(self.beta_c, context))
        return Terms({**terms, **self.own(out, context)})
