"""Traversals of continuous latents with the discrete ones fixed."""

import torch

from unbraid.experiments.base import Results
from unbraid.metrics import Evaluation
from unbraid.metrics.discrete.discrete_latents import list_discrete_latents
from unbraid.metrics.generative.features.feature_sets import decode_means
from unbraid.metrics.intervention.factor_preservation import choose_latents, find_normal_coordinates
from unbraid.report import Picture, traversal
from unbraid.report.pictures import WHITE, tile_images
from unbraid.report.traversals import compute_coordinate_kl, set_coordinates

SPAN, COLUMNS = 3.0, 7


def load_first(results: Results, series: str) -> Evaluation:
    """Return the model of the first finished run of a series."""
    return results.load_evaluation(results.select_members(series)[0])


def traverse_row(results: Results, series: str, row: int, count: int = 10) -> Picture:
    """Draw the `count` most informative continuous latents moving, from the code of one row."""
    model = load_first(results, series)
    names = [model.code_names[latent] for latent in sort_by_information(model)[:count]]
    return traversal(model, latents=names, base=row, span=SPAN, columns=COLUMNS)


def traverse_class(results: Results, series: str, number: int) -> Picture:
    """Draw each continuous latent moving, the others at 0 and a discrete one at class `number`."""
    model = load_first(results, series)
    base = torch.zeros(model.space.width, device=model.dataset.device)
    for variable in list_discrete_latents(model.space):
        base = variable.with_class(base, number)
    latents = sort_by_information(model)
    values = make_steps(model)[:, None]
    codes = torch.stack([set_coordinates(base, [latent], values, len(values)) for latent in latents])
    return tile_images(decode_means(model, codes.flatten(0, 1)).unflatten(0, codes.shape[:2]), WHITE)


def traverse_factor(results: Results, series: str, factor: str, keep: str) -> Picture:
    """Draw the latent that follows `factor` moving, from one row for each value of the factor `keep`."""
    model = load_first(results, series)
    values = model.choose_factors([keep])[0][:, 0]
    rows = [int((values == value).nonzero()[0]) for value in values.unique()]
    (latent,), _ = choose_latents(model, factor)
    codes = model.encode_means(torch.tensor(rows, device=values.device))[:, None].repeat(1, COLUMNS, 1)
    codes[:, :, latent] = make_steps(model)
    return tile_images(decode_means(model, codes.flatten(0, 1)).unflatten(0, codes.shape[:2]), WHITE)


def sort_by_information(model: Evaluation) -> list[int]:
    """Return the continuous coordinates, those with the largest KL first."""
    kl = compute_coordinate_kl(model)
    return sorted(find_normal_coordinates(model), key=lambda latent: -float(kl[latent]))


def make_steps(model: Evaluation) -> torch.Tensor:
    """Return the values of a moving latent [columns]."""
    return torch.linspace(-SPAN, SPAN, COLUMNS, device=model.dataset.device)
