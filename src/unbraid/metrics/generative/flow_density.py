r"""Log density of observations, in nats per observation, of a mixture and of the flow that sharpens it (msvae2020).

    mixture   E[log sum_c pi_c N(x; mu_c, v_c)]
    flow      E[log sum_c pi_c p(x | y_c)]
    gain      the second minus the first, on the same rows and the same noise

Of a flow that refines a run there is `flow` alone, E[log p(x|y)]: exact, given what the first stage draws of the row.
Bytes and bits are made continuous and the density is per level, so that each is a lower bound of the log probability of
the pixels. Where a flow sees samples y_c, its density is the mean over `draws` of them: a lower bound that more draws
tighten.
"""

import math
from typing import Any

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.intervals import score_mean
from unbraid.models.dequantise import DEQUANTISE
from unbraid.progress import progress

PIECE = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Numbers, rows x components x values, that are looked at between two moves of the progress bar."""

FLOW, MIXTURE, GAIN = "flow", "mixture", "gain"
FACTS: dict[str, Any] = {"reference": "msvae2020", "needs": ("density",)}


@metric_protocol("density/mixture", "Log density under the mixture of Gaussians alone, nats per observation.", **FACTS)
@metric_protocol(
    "density/flow",
    "Log density under the flow behind a mixture, or given what a refined run draws, nats per observation.",
    **FACTS,
)
@metric_protocol(
    "density/gain", "What the flow adds to the mixture's log density, row by row, nats per observation.", **FACTS
)
def on_run(evaluation: Evaluation, protocol: str, *, samples: int = 10_000, draws: int = 1) -> Score:
    """Log density of observations under a run that has one."""
    check_at_least(2, samples=samples)
    check_at_least(1, draws=draws)
    values = evaluation.compute_once(("densities", samples, draws), lambda: _densities(evaluation, samples, draws))
    if protocol != FLOW and MIXTURE not in values:
        raise UsageError(f"density/{protocol} is of an ms-flow; a flow that refines a run has density/flow.")
    each = values[FLOW] - values[MIXTURE] if protocol == GAIN else values[protocol]
    return score_mean("density", protocol, each.cpu().numpy())


def _densities(evaluation: Evaluation, samples: int, draws: int) -> dict[str, Tensor]:
    """Log densities of each chosen row [rows], by name, in float64."""
    model, dataset, rows = evaluation.model, evaluation.dataset, evaluation.choose(samples)
    seeds = noise.seed_tensor(evaluation.seed, device=dataset.device)
    length = max(1, PIECE.get(rows.device.type, 1 << 22) // (model.space.width * math.prod(model.shape)))
    made: dict[str, list[Tensor]] = {}
    with torch.no_grad(), progress("density", len(rows)) as bar:
        for number, part in enumerate(rows.split(length)):
            inputs = model.training_inputs(dataset, evaluation.rows[part])
            each: dict[str, list[Tensor]] = {}
            needs = model.needs(len(part))
            fixed = noise.draw({DEQUANTISE: needs.pop(DEQUANTISE)}, seeds, number)
            for draw in range(draws if needs else 1):
                drawn = {**fixed, **noise.draw(needs, seeds, number * draws + draw)}
                found = model(inputs, {name: tensor[0] for name, tensor in drawn.items()}).extra
                for name, values in found._asdict().items():
                    each.setdefault(name, []).append(values.double())
            for name, parts in each.items():
                made.setdefault(name, []).append(torch.stack(parts).logsumexp(0) - math.log(len(parts)))
            bar.advance(len(part))
    return {name: torch.cat(parts) for name, parts in made.items()}
