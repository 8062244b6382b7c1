r"""Log density, in nats per observation, under a mixture and under the flow that refines it (msvae2020).

    mixture   E[log sum_c pi_c N(x; mu_c, v_c)]
    flow      E[log sum_c pi_c p(x | y_c)]
    gain      flow minus mixture, on the same rows and the same noise

A flow that refines a run has only `flow`, E[log p(x|y)], exact given the first stage's draw for the row. Bytes and bits
are dequantised and the density is per level, so each value is a lower bound of the pixels' log probability. A flow that
sees samples y_c averages its density over `draws` of them: a lower bound that more draws tighten.
"""

import math
from functools import partial

import torch
from torch import Tensor

from unbraid import noise
from unbraid.errors import UsageError
from unbraid.metrics.arrays import check_at_least
from unbraid.metrics.base import Evaluation, Score, metric_protocol
from unbraid.metrics.intervals import score_mean
from unbraid.models.dequantise import DEQUANTISE
from unbraid.progress import track

MAX_VALUES_PER_BATCH = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Product of rows, mixture components and values per observation."""

FLOW, MIXTURE, GAIN = "flow", "mixture", "gain"
density_metric = partial(metric_protocol, reference="msvae2020", needs=("density",))


@density_metric("density/mixture", "Log density under the mixture of Gaussians, nats per observation.")
@density_metric(
    "density/flow",
    "Log density under the flow after a mixture, or given the draw of the run that it refines, nats per observation.",
)
@density_metric("density/gain", "Gain of the flow over the mixture in log density, nats per observation.")
def on_run(evaluation: Evaluation, protocol: str, *, samples: int = 10_000, draws: int = 1) -> Score:
    check_at_least(2, samples=samples)
    check_at_least(1, draws=draws)
    values = evaluation.compute_once(
        ("densities", samples, draws), lambda: _compute_densities(evaluation, samples, draws)
    )
    if protocol != FLOW and MIXTURE not in values:
        raise UsageError(
            f"density/{protocol} needs an ms-flow with a mixture; a flow that refines a run has density/flow."
        )
    each = values[FLOW] - values[MIXTURE] if protocol == GAIN else values[protocol]
    return score_mean("density", protocol, each.cpu().numpy())


def _compute_densities(evaluation: Evaluation, samples: int, draws: int) -> dict[str, Tensor]:
    """Return the log densities [rows] of the chosen rows, by name, in float64."""
    model, dataset, rows = evaluation.model, evaluation.dataset, evaluation.choose(samples)
    seeds = noise.seed_tensor(evaluation.seed, device=dataset.device)
    length = max(1, MAX_VALUES_PER_BATCH.get(rows.device.type, 1 << 22) // (model.space.width * math.prod(model.shape)))
    densities: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for number, part in enumerate(track("density", rows.split(length))):
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
                densities.setdefault(name, []).append(torch.stack(parts).logsumexp(0) - math.log(len(parts)))
    return {name: torch.cat(parts) for name, parts in densities.items()}
