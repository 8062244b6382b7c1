"""MS-VAE beside its first stage, in pictures: msvae2020's figures 1, 3, 9 to 14, 32 and 33.

How an image looks is for readers to judge. What is tested is what the text says of the figures: that refined images are
nearer to the data, what a small and a large C leave to Z, and how much images vary with draws of c.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unbraid import noise
from unbraid.experiments.base import REFINES, Claim, Evidence, Results, StandIn, experiment
from unbraid.experiments.drawing import draw_pictures
from unbraid.experiments.evidence import Finding, compare_means
from unbraid.experiments.statistics import estimate
from unbraid.metrics import Evaluation, Score
from unbraid.models import as_stage
from unbraid.papers.msvae2020 import cars
from unbraid.papers.msvae2020.cars import BASE, CARS, DISTANCE, MIG, MS, NORB, absent
from unbraid.report import Picture, traverse, triples
from unbraid.report.pictures import WHITE, tile_images
from unbraid.report.traversals import add_labels, set_coordinates

FACES = StandIn("celeba", "sprites")
BETA = 4
HELD = "kl of z"
"""What a second stage holds, in nats."""

COLUMNS, DRAWS, SHOWN = 7, 5, 5
ASKED = 64
"""Images whose draws are compared."""

VARIES = 0.1
"""Deviation of y over draws of c, as a share of that over images, from which on it varies much (ours)."""

CHOSEN = f"Shown is the run of MS-VAE with the smallest {DISTANCE}, and what it refines."


class Sizes(NamedTuple):
    """Numbers of latents of either stage, and beta of the first."""

    c: int
    z: int
    beta: float = BETA

    @property
    def first(self) -> str:
        """Name of the series of first stages."""
        return f"{BASE}, |C| = {self.c}"

    @property
    def second(self) -> str:
        """Name of the series that refines it."""
        return f"{MS}, |C| = {self.c}, |Z| = {self.z}"


def held(scores: Mapping[str, Score]) -> Score:
    """KL of the second stage's own latents; a first stage has none."""
    score = scores["kl/closed-form"]
    own = [value for name, value in score.details["latents"].items() if name.startswith("z")]
    if len(own) == len(score.details["latents"]):
        raise KeyError(HELD)
    return Score("kl", "closed-form", float(sum(own)), score.samples, part="z")


def study(data: StandIn, *sizes: Sizes, **stage: Any) -> dict[str, Any]:
    """Series, scales and scores of first stages of some sizes and of what refines them."""
    series: dict[str, dict[str, Any]] = {}
    for each in sizes:
        series[each.first] = {"recipe": "beta-tcvae", "z": each.c, "beta": each.beta}
        series[each.second] = {"recipe": "ms-vae", REFINES: each.first, "z": each.z, **stage}
    scales = {}
    for name in cars.SHARED:
        own = {**cars.STAGES[name], **cars.REFINERS[name], **stage}
        scales[name] = cars.scale(name, cars.on_data(name, data), {each.second: own for each in sizes})
    return {
        "series": series,
        "scales": scales,
        "metrics": ("mig-of/blocks", "kl/closed-form"),
        "derived": {MIG: cars.mig_of_c, HELD: held},
        "scores": (DISTANCE, MIG, HELD),
    }


def nearer(sizes: Sizes) -> Finding:
    """The distance of refined images minus that of what they refine."""
    return compare_means(sizes.first, sizes.second, DISTANCE, high=0.0)


NEARER = "refined images are nearer to the data than what they refine"


def best(results: Results, sizes: Sizes) -> Evaluation:
    """The second stage whose images are nearest to the data."""
    runs = results.select_members(sizes.second, DISTANCE)
    return results.load_evaluation(min(runs, key=lambda member: member.scores[DISTANCE].value))


def refined_triples(results: Results, make: Any, sizes: Sizes) -> Any:
    """Images, what the first stage makes of them, and what the second."""
    return draw_pictures(make, [[(sizes.second, triples(best(results, sizes), columns=COLUMNS))]])


def both_stages(model: Evaluation, columns: int = COLUMNS) -> Picture:
    """Traversals of C: above what the first stage draws, below what the second one makes of it at one z."""
    staged = as_stage(model.model)
    names = [name for name in model.space.leaf_names() if not name.startswith("z")]
    made = traverse(model, latents=names, columns=columns)
    order = sorted(range(len(names)), key=lambda row: -made.kl[row])
    start = model.means[model.choose(1)[0]][: staged.first.space.width]
    codes = torch.stack([set_coordinates(start, [c], values[:, None], columns) for c, values in enumerate(made.values)])
    with torch.no_grad():
        coarse = staged.decode_first(codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
    images = torch.stack([coarse, made.images], 1)[order].flatten(0, 1)  # y and x of one latent next to each other
    labels = [text for place in order for text in (f"{names[place]}  y", "x")]
    return add_labels(tile_images(images, WHITE), labels, [], images.shape[-2], images.shape[-1])


def both_drawn(results: Results, make: Any, sizes: Sizes) -> Any:
    """Traversals of C in both stages, of the run that is shown."""
    return draw_pictures(make, [[(sizes.second, both_stages(best(results, sizes)))]])


# figures 1 and 3

USUAL, TOYS = Sizes(10, 5), Sizes(10, 10)


@experiment(
    "msvae2020/fig1",
    year=2020,
    reference="msvae2020, figure 1",
    **study(CARS, USUAL),
    claims=(Claim(NEARER, nearer(USUAL)),),
    notes=(*cars.NOTES, CHOSEN, "beta = 4 and the data are ours: the paper's figure names neither."),
)
def fig1(results: Results, make: Any) -> Any:
    """Images of cars, their reconstructions by a beta-TCVAE, and those refined by MS-VAE."""
    return refined_triples(results, make, USUAL)


@experiment(
    "msvae2020/fig3",
    year=2020,
    reference="msvae2020, figure 3",
    **study(NORB, TOYS),
    claims=(Claim(NEARER, nearer(TOYS)),),
    notes=(*cars.NOTES[1:], absent(NORB), CHOSEN, "The paper's cars are those of figure 1."),
)
def fig3(results: Results, make: Any) -> Any:
    """Images of toys (SmallNORB), their reconstructions by a beta-TCVAE, and those refined by MS-VAE."""
    return refined_triples(results, make, TOYS)


# figures 9 to 12


def left_to_z(small: Sizes, large: Sizes) -> tuple[Claim, Claim]:
    """What a first stage with few latents cannot show."""
    blurry = compare_means(large.first, small.first, DISTANCE, low=0.0)
    return (
        Claim(f"images of a first stage with |C| = {small.c} are farther from the data than with {large.c}", blurry),
        Claim("and Z adds more: it holds more nats", compare_means(large.second, small.second, HELD, low=0.0)),
    )


def better_apart(small: Sizes, large: Sizes) -> tuple[Claim, Claim]:
    """What one with many can."""
    gap = compare_means(small.first, large.first, MIG, low=0.0)
    return Claim("a larger C is disentangled better", gap), Claim("and Z refines its images", nearer(large))


SMALL_C, LARGE_C = Sizes(2, 8), Sizes(10, 5)
SMALL_NORB, LARGE_NORB = Sizes(2, 8), Sizes(10, 10, beta=6)
OF_CARS = {**study(CARS, SMALL_C, LARGE_C), "notes": (*cars.NOTES, CHOSEN)}
OF_NORB = {
    **study(NORB, SMALL_NORB, LARGE_NORB),
    "notes": (
        *cars.NOTES[1:],
        absent(NORB),
        CHOSEN,
        "As in the paper's figures, the small C has beta = 4 and the large one beta = 6: what differs between them may "
        "be due to either.",
    ),
}


@experiment(
    "msvae2020/fig9",
    year=2020,
    reference="msvae2020, figure 9",
    claims=left_to_z(SMALL_C, LARGE_C),
    **OF_CARS,
)
def fig9(results: Results, make: Any) -> Any:
    """Traversals of a small C (2) on Cars3D: what the first stage draws, and what the second makes of it."""
    return both_drawn(results, make, SMALL_C)


@experiment(
    "msvae2020/fig10",
    year=2020,
    reference="msvae2020, figure 10",
    claims=better_apart(SMALL_C, LARGE_C),
    **OF_CARS,
)
def fig10(results: Results, make: Any) -> Any:
    """Traversals of a large C (10) on Cars3D: what the first stage draws, and what the second makes of it."""
    return both_drawn(results, make, LARGE_C)


@experiment(
    "msvae2020/fig11",
    year=2020,
    reference="msvae2020, figure 11",
    claims=left_to_z(SMALL_NORB, LARGE_NORB),
    **OF_NORB,
)
def fig11(results: Results, make: Any) -> Any:
    """Traversals of a small C (2) on SmallNORB: what the first stage draws, and what the second makes of it."""
    return both_drawn(results, make, SMALL_NORB)


@experiment(
    "msvae2020/fig12",
    year=2020,
    reference="msvae2020, figure 12",
    claims=better_apart(SMALL_NORB, LARGE_NORB),
    **OF_NORB,
)
def fig12(results: Results, make: Any) -> Any:
    """Traversals of a large C (10) on SmallNORB: what the first stage draws, and what the second makes of it."""
    return both_drawn(results, make, LARGE_NORB)


# figures 13, 14, 32 and 33

FACE = Sizes(15, 5, beta=15)
OF_FACES = {
    **study(FACES, FACE, samples=10),
    "notes": (
        *cars.NOTES[1:],
        absent(FACES),
        "beta = 15, |C| = 15 and ten draws of c for each x (appendix I) are the paper's; |Z| = 5 is ours.",
        CHOSEN,
    ),
}


@experiment(
    "msvae2020/fig13",
    year=2020,
    reference="msvae2020, figure 13",
    claims=(Claim(NEARER, nearer(FACE)),),
    **OF_FACES,
)
def fig13(results: Results, make: Any) -> Any:
    """Traversals of C on CelebA: what the first stage draws, and what the second makes of it."""
    return both_drawn(results, make, FACE)


@experiment(
    "msvae2020/fig14",
    year=2020,
    reference="msvae2020, figure 14",
    claims=(Claim(NEARER, nearer(FACE)),),
    **OF_FACES,
)
def fig14(results: Results, make: Any) -> Any:
    """Photographs of CelebA, their reconstructions by a beta-TCVAE, and those refined by MS-VAE."""
    return refined_triples(results, make, FACE)


class Drawn(NamedTuple):
    """Images [n, *shape], and for several draws of c of each what either stage makes of it, [n, draws, *shape]."""

    x: Tensor
    y: Tensor
    refined: Tensor

    def deviation(self, images: Tensor) -> float:
        """Root of the mean variance of pixels over draws, as a share of that over the images themselves."""
        return float((images.var(1).mean() / self.x.var(0).mean()).sqrt())


def drawn(model: Evaluation, count: int) -> Drawn:
    """Draws of c of random images, and the posterior mean of z at each."""
    staged = as_stage(model.model)
    positions = model.choose(count)
    x = model.dataset.images(model.rows[positions])
    first, own = staged.first.space, staged.space.last_stage
    many = x.repeat_interleave(DRAWS, 0)
    seeds = noise.seed_tensor(model.seed, device=x.device)
    numbers = {name: tensor[0] for name, tensor in noise.draw(first.needs(len(many)), seeds, step=0).items()}
    with torch.no_grad():
        posterior = {name: part.repeat_interleave(DRAWS, 0) for name, part in staged.encode_first(x).items()}
        code = first.join(first.sample(posterior, numbers))
        z = own.center(staged.encode_given(many, code))
        y = staged.decode_first(code)
        refined = staged.likelihood.mean(staged.refine(y, z))
    return Drawn(x, *(images.unflatten(0, (-1, DRAWS)) for images in (y, refined)))


def deviations(results: Results) -> np.ndarray:
    """How much y and refined images vary over draws of c [runs, 2]."""
    models = [results.load_evaluation(member) for member in results.select_members(FACE.second, DISTANCE)]
    made = [drawn(model, ASKED) for model in models]
    return np.array([[each.deviation(each.y), each.deviation(each.refined)] for each in made])


def varies(results: Results) -> list[Evidence]:
    """Deviation of y over draws of c."""
    found = estimate({None: deviations(results)}, lambda c: c[None][..., 0].mean(-1))
    return [Evidence("deviation of y over draws of c, as a share of that over images", found, low=VARIES)]


def steadier(results: Results) -> list[Evidence]:
    """Deviation of refined images minus that of the y that they refine."""
    found = estimate({None: deviations(results)}, lambda c: (c[None][..., 1] - c[None][..., 0]).mean(-1))
    return [Evidence("deviation over draws of c, refined images minus y", found, high=0.0)]


@experiment(
    "msvae2020/fig32",
    year=2020,
    reference="msvae2020, figure 32",
    claims=(Claim(f"y of one x vary much: by {VARIES:.0%} of what images do, or more (ours)", varies),),
    **OF_FACES,
)
def fig32(results: Results, make: Any) -> Any:
    """Photographs of CelebA, each above what the first stage makes of five draws of its c."""
    made = drawn(best(results, FACE), SHOWN)
    rows = torch.stack([made.x.unsqueeze(1).expand_as(made.y), made.y], 1).flatten(0, 1)
    return draw_pictures(make, [[(FACE.first, tile_images(rows, WHITE))]])


@experiment(
    "msvae2020/fig33",
    year=2020,
    reference="msvae2020, figure 33",
    claims=(Claim("refined images vary less than the y that they refine", steadier),),
    **OF_FACES,
)
def fig33(results: Results, make: Any) -> Any:
    """What the first stage makes of five draws of c, each above what the second makes of it, on CelebA."""
    made = drawn(best(results, FACE), SHOWN)
    return draw_pictures(
        make, [[(FACE.second, tile_images(torch.stack([made.y, made.refined], 1).flatten(0, 1), WHITE))]]
    )
