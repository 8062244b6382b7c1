"""Pictures of traversals in which discrete latents stay."""

import torch

from unbraid.experiments.base import Results
from unbraid.metrics import Evaluation
from unbraid.metrics.discrete.discrete_latents import discrete_variables
from unbraid.metrics.intervention.factor_preservation import latents_along, normal_coordinates
from unbraid.report import Picture, traversal
from unbraid.report.pictures import WHITE, tiled
from unbraid.report.traversals import coordinate_kl, decode, moved

SPAN, COLUMNS = 3.0, 7


def shown(results: Results, series: str) -> Evaluation:
    """The model of the first finished run of a series."""
    return results.load_evaluation(results.select_members(series)[0])


def from_row(results: Results, series: str, row: int, most: int = 10) -> Picture:
    """Each of the most informative continuous latents moves, from the code of one row."""
    model = shown(results, series)
    names = [model.code_names[latent] for latent in by_information(model)[:most]]
    return traversal(model, latents=names, base=row, span=SPAN, columns=COLUMNS)


def from_class(results: Results, series: str, number: int) -> Picture:
    """Each continuous latent moves, the other ones at 0 and a discrete one at one of its classes."""
    model = shown(results, series)
    base = torch.zeros(model.space.width, device=model.dataset.device)
    for variable in discrete_variables(model.space):
        base = variable.with_class(base, number)
    latents = by_information(model)
    through = steps(model)[:, None]
    codes = torch.stack([moved(base, [latent], through, len(through)) for latent in latents])
    return tiled(decode(model, codes.flatten(0, 1)).unflatten(0, codes.shape[:2]), WHITE)


def along_factor(results: Results, series: str, factor: str, keep: str) -> Picture:
    """The latent that goes with one factor moves, from a row of each value of another."""
    model = shown(results, series)
    values = model.choose_factors([keep])[0][:, 0]
    rows = [int((values == value).nonzero()[0]) for value in values.unique()]
    (latent,), _ = latents_along(model, factor)
    codes = model.encode_means(torch.tensor(rows, device=values.device))[:, None].repeat(1, COLUMNS, 1)
    codes[:, :, latent] = steps(model)
    return tiled(decode(model, codes.flatten(0, 1)).unflatten(0, codes.shape[:2]), WHITE)


def by_information(model: Evaluation) -> list[int]:
    """Continuous coordinates, those with the largest KL first."""
    kl = coordinate_kl(model)
    return sorted(normal_coordinates(model), key=lambda latent: -float(kl[latent]))


def steps(model: Evaluation) -> torch.Tensor:
    """Values that a latent takes [columns]."""
    return torch.linspace(-SPAN, SPAN, COLUMNS, device=model.dataset.device)
