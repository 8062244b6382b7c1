r"""Dependence of c and each s_m, and the information that each carries (daunhawer2019, eq. 4 to 6, figure 3).

    TC(c, s_m) = KL(q(c, s_m) || q(c) q(s_m)),    q(c, s_m) = 1/N sum_n q(c|x_n) q(s_m|x_n)

The density-ratio discriminator of table 3 estimates it from codes of the evaluated rows; draws from the product of the
marginals pair c and s_m of different rows. The expectation is over a fifth of the rows, which the discriminator is not
trained on. The estimate misses dependence that the discriminator does not see, and the more the larger the TC.

A TC of 0 has two possible reasons: c and s_m carry different information, or one of them carries none. So the details,
and `kl-blocks`, also give KL(q(s_m|x_m) || p(s_m)) and KL(q(c|x) || p(c)): `closed-form` over all rows that have the
modality, `sampled` at one draw per row for posteriors without a closed form (the mixture of mmvae).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric
from unbraid.metrics.intervals import EXACT, score_mean
from unbraid.metrics.multimodal.conditional_draws import find_rows_with_block
from unbraid.metrics.unsupervised.code_dependence import total_correlation
from unbraid.models import MultimodalModel, as_multimodal
from unbraid.models.generation import CHOICE
from unbraid.models.multimodal import SHARED
from unbraid.noise import Need
from unbraid.progress import track

SOURCE: dict[str, Any] = {"reference": "daunhawer2019"}


@metric("tc-blocks/ratio", **SOURCE, needs=("modalities",), bounds=(0, float("inf")), trial={"width": 32, "steps": 40})
def tc_blocks(
    evaluation: Evaluation,
    *,
    samples: int = 10_000,
    width: int = 1000,
    depth: int = 5,
    steps: int = 500,
    batch: int = 128,
    lr: float = 2e-3,
) -> list[Score]:
    """Total correlation of c and each s_m, by a network that discriminates joint codes from codes with c permuted."""
    model, scores = as_multimodal(evaluation.model), []
    private_blocks = [block for block in model.space.blocks if block != SHARED]
    if not private_blocks:
        raise UsageError("tc-blocks compares c with each modality's private latents, and this model has none (s=0).")
    draws = draw_blocks(evaluation, model, samples)
    network = {"width": width, "depth": depth, "steps": steps, "batch": batch, "lr": lr}
    for block in private_blocks:
        pair = {name: draws[name] for name in (SHARED, block)}
        present, codes = draws[block].present, torch.cat([one.value for one in pair.values()], -1)
        c, s = torch.arange(codes.shape[-1]).split([one.value.shape[-1] for one in pair.values()])
        groups = [c.tolist(), s.tolist()]
        score = total_correlation(codes[present], protocol="ratio", seed=evaluation.seed, groups=groups, **network)
        kl = {name: float(one.kl[present].cpu().double().mean()) for name, one in pair.items()}
        scores.append(replace(score, metric="tc-blocks", part=block, details={**score.details, "kl": kl}))
    return scores


@metric(
    "kl-blocks/closed-form", **SOURCE, needs=("modalities", "posterior"), bounds=(0, float("inf")), deterministic=True
)
def kl_blocks(evaluation: Evaluation) -> list[Score]:
    """KL(q(c|x) || p(c)) and KL(q(s_m|x_m) || p(s_m)), mean over all rows that have the modality."""
    model = as_multimodal(evaluation.model)
    posterior, scores = evaluation.posterior, []
    for name, present in find_rows_with_block(evaluation, model, evaluation.rows).items():
        block, flat = model.space.blocks[name], posterior[name][present]
        kl = block.kl(flat, block.standard(flat), block.center(flat)).cpu().double()  # [rows, latents]
        value, details = float(kl.sum(-1).mean()), {"latents": kl.mean(0).tolist()}
        scores.append(
            Score("kl-blocks", "closed-form", value, len(kl), (value, value), name, details=details, covers=EXACT)
        )
    return scores


@metric("kl-blocks/sampled", **SOURCE, needs=("modalities",), trial={"samples": 64})
def kl_blocks_sampled(evaluation: Evaluation, *, samples: int = 10_000) -> list[Score]:
    """E[log q - log p] of c and of each s_m at one draw per row, for any posterior of c."""
    codes = draw_blocks(evaluation, as_multimodal(evaluation.model), samples)
    ratios = {block: one.ratio[one.present].cpu().double().numpy() for block, one in codes.items()}
    return [score_mean("kl-blocks", "sampled", values, block) for block, values in ratios.items()]


class BlockDraws(NamedTuple):
    """One draw per row of a block [rows, D], its KL and log q - log p [rows], and the rows that have the block [rows].

    The KL is the closed form where there is one, else log q - log p.
    """

    value: Tensor
    kl: Tensor
    ratio: Tensor
    present: Tensor


def draw_blocks(evaluation: Evaluation, model: MultimodalModel, samples: int) -> dict[str, BlockDraws]:
    """Return one draw of q(c|x_A) and of each q(s_m|x_m) for random rows; later calls return the same draws."""
    check_at_least(2, samples=samples)
    return evaluation.compute_once(
        ("drawn blocks", samples), lambda: _draw(evaluation, model, evaluation.choose(samples))
    )


def _draw(evaluation: Evaluation, model: MultimodalModel, positions: Tensor) -> dict[str, BlockDraws]:
    present, draws = find_rows_with_block(evaluation, model, evaluation.rows[positions]), {}
    with torch.no_grad():
        batches = enumerate(track("codes", positions.split(evaluation.batch)))
        parts = [_draw_batch(evaluation, model, part, number) for number, part in batches]
    for block, mask in present.items():
        value, kl, ratio = (torch.cat(each) for each in zip(*(part[block] for part in parts), strict=True))
        draws[block] = BlockDraws(value, kl, ratio, mask)
    return draws


def _draw_batch(evaluation: Evaluation, model: MultimodalModel, part: Tensor, number: int) -> dict[str, list[Tensor]]:
    """Return the draw, KL and log q - log p of each block."""
    blocks, seeds = model.space.blocks, noise.seed_tensor(evaluation.seed, device=part.device)
    needs = {name: Need("normal", (len(part), block.width)) for name, block in blocks.items()}
    needs[CHOICE] = Need("uniform", (len(part), 1))
    drawn = {name: tensor[0] for name, tensor in noise.draw(needs, seeds, number).items()}
    posteriors = model.encode_each(evaluation.dataset.inputs(evaluation.rows[part]))
    found = {}
    for name, block in blocks.items():
        if name == SHARED:
            value = model.draw_shared(posteriors, drawn[CHOICE], drawn[SHARED].unsqueeze(1))
            flat, log_q = torch.cat(model.fuse(posteriors), -1), model.log_posterior(posteriors, value).squeeze(1)
            value = value.squeeze(1)
        else:
            flat = posteriors.private[name]
            value = block.sample(flat, drawn[name])
            log_q = block.log_density(flat, value).sum(-1)
        standard = block.standard(flat)
        ratio = log_q - block.log_density(standard, value).sum(-1)
        mixed = name == SHARED and not model.whole_posterior
        found[name] = [value, ratio if mixed else block.kl(flat, standard, value).sum(-1), ratio]
    return found
