"""What benchmarks/coverage.py repeats: synthetic codes, trained runs, and groups of scores with their repetitions.

Four synthetic codes have 10 latents and 5 factors of 3 to 10 values:

    clear   five latents are the standardised factors with noise .3, five are noise
    tied    two latents for each factor, with noise .5 of their own
    weak    five latents hold .4 of a factor in noise 1
    heavy   as clear, with noise .5 of Student's t distribution with 3 degrees of freedom

A fifth case is there to check what was derived on the others: every latent of `mixed` is a sum of all factors with
Normal weights (deviation .6) and noise .5 of Laplace's distribution.

Trained runs are a beta-TCVAE and a beta-VAE on 40,000 random rows of sprites, 300 steps each; exact scores
see 8,000 of them.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from coverage_page import CASES, RECIPES

import unbraid as ub
from unbraid import metrics
from unbraid.metrics import Evaluation, Score

SIZES = (3, 4, 6, 8, 10)
ROWS = (1_000, 10_000)
ROWS_OF_TRUTH = 1_000_000
ROWS_OF_TRAINED = 40_000
ROWS_OF_EXACT = 8_000

MIXING = 0.6 * np.random.default_rng(123).standard_normal((5, 10))
CHECKED = ("codes", "sap", "infomec", "explicitness", "neighbours")
"""Groups that are measured on the fifth case, too."""

Call = Callable[..., Score | list[Score]]
"""Scores codes and factors; `resamples=0` measures no interval."""


class Group(NamedTuple):
    """Scores of one kind, and how often they are repeated with 1,000 and with 10,000 rows.

    `widths` of the repetitions measure intervals; None means all.
    """

    calls: Sequence[Call]
    repetitions: tuple[int, int]
    widths: tuple[int, int] | None = None
    fixed_rows: bool = False


def draw_case(name: str, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [rows, 10] and factors [rows, 5]."""
    sizes = np.array(SIZES)
    factors = np.stack([rng.integers(0, size, rows) for size in SIZES], axis=1)
    scaled = (factors - (sizes - 1) / 2) / np.sqrt((sizes**2 - 1) / 12)
    noise, nothing = rng.standard_normal((rows, 10)), np.zeros_like(scaled)
    if name == "clear":
        return np.concatenate([scaled + 0.3 * noise[:, :5], noise[:, 5:]], axis=1), factors
    if name == "tied":
        return np.concatenate([scaled, scaled], axis=1) + 0.5 * noise, factors
    if name == "mixed":
        return scaled @ MIXING + 0.5 * rng.laplace(size=(rows, 10)), factors
    if name == "weak":
        return np.concatenate([0.4 * scaled, nothing], axis=1) + noise, factors
    heavy = rng.standard_t(3, (rows, 10))
    return np.concatenate([scaled, nothing], axis=1) + 0.5 * heavy, factors


def compare_features(
    measure: Callable[..., Any], codes: np.ndarray, factors: np.ndarray, seed: int, **settings: Any
) -> Any:
    """Score two halves of the codes as features; the second is moved a little."""
    first, second = codes[: len(codes) // 2], codes[len(codes) // 2 :]
    return measure(first, move(second), seed=seed, **settings)


def move(codes: np.ndarray) -> np.ndarray:
    return 1.1 * codes + 0.1


def score_conditioning(codes: np.ndarray, factors: np.ndarray, seed: int, **settings: Any) -> Score:
    noise = np.random.default_rng(seed).standard_normal(codes.shape)
    return metrics.conditioning(codes, codes + 0.3 * noise, seed=seed, **settings)


def score_predictability(codes: np.ndarray, factors: np.ndarray, seed: int, resamples: int = 10) -> list[Score]:
    scores = metrics.infomec(codes, factors, protocol="histogram", resamples=resamples, seed=seed)
    return [score for score in scores if score.part == "explicitness"]


def score_clusters(codes: np.ndarray, factors: np.ndarray, seed: int) -> list[Score]:
    return [metrics.clusters(codes[:, 0] > 0, factors[:, 0], match=match) for match in ("hungarian", "majority")]


def score_udr(codes: np.ndarray, factors: np.ndarray, seed: int) -> Score:
    """Score one model against nine others, whose codes are its own, turned and noisy."""
    rng, models = np.random.default_rng(seed), [codes]
    for _ in range(9):
        turn = np.linalg.qr(np.eye(10) + 0.3 * rng.standard_normal((10, 10)))[0]
        models.append(codes @ turn + 0.3 * rng.standard_normal(codes.shape))
    return metrics.udr(models, first=1)[0]


def probe(codes: np.ndarray, factors: np.ndarray, seed: int, protocol: str) -> list[Score]:
    return metrics.probe({"c": codes[:, :5]}, factors[:, 1], protocol=protocol, names=["v"], seed=seed)


def without(call: Call) -> Call:
    """Return a call that takes no `resamples`, because its interval costs nothing or is absent."""

    def plain(codes: np.ndarray, factors: np.ndarray, seed: int, **_: Any) -> Any:
        return call(codes, factors, seed=seed)

    return plain


GROUPS: dict[str, Group] = {
    "codes": Group(
        [lambda codes, factors, seed, **_: metrics.total_correlation(codes), without(score_clusters)], (1_000, 1_000)
    ),
    "mig": Group([metrics.mig, without(metrics.modularity)], (400, 400), (60, 20)),
    "sap": Group([metrics.sap], (400, 400), (30, 10)),
    "infomec": Group(
        [partial(metrics.infomec, protocol="histogram", with_explicitness=False)], (1_000, 1_000), (60, 20)
    ),
    "explicitness": Group([metrics.explicitness], (400, 200), (40, 10)),
    "corrected": Group(
        [metrics.mig_corrected, metrics.modularity_corrected, metrics.infomec_corrected], (4, 1_000), (4, 40)
    ),
    "conditioning": Group([score_conditioning], (400, 400), (60, 15)),
    "distances": Group(  # their values have heavy tails
        [
            without(partial(compare_features, lambda a, b, seed: metrics.frechet(a, b, resamples=20, seed=seed))),
            partial(compare_features, metrics.precision_recall),
        ],
        (1_000, 1_000),
        (200, 200),
    ),
    "kernels": Group([without(partial(compare_features, lambda a, b, seed: metrics.kid(a, b)))], (1_000, 1_000)),
    "interventions": Group([without(metrics.betavae)], (200, 200), fixed_rows=True),
    "votes": Group([metrics.factorvae], (1_000, 1_000), fixed_rows=True),
    "downstream": Group([metrics.downstream], (1_000, 1_000), (200, 200)),
    "predictability": Group([score_predictability], (400, 200), (30, 10)),
    "neighbours": Group(  # its explicitness is that of the histogram
        [partial(metrics.infomec, protocol="knn", with_explicitness=False)], (400, 300), (30, 10)
    ),
    "partners": Group([without(score_udr)], (400, 0)),
    "probes": Group([without(partial(probe, protocol="linear")), without(partial(probe, protocol="knn"))], (200, 0)),
    "dci": Group([partial(metrics.dci, predictor="lasso")], (200, 400), (40, 30)),
}
"""Groups in the order in which they are measured."""

NAMES_OF_TRAINED = (
    *("elbo/closed-form", "reconstruction/nats", "reconstruction/l1", "reconstruction/l2", "kl/sampled"),
    *("elbo/sampled", "tc/gaussian", "mi/stratified", "tc/stratified", "dimension-kl/stratified"),
    *("mig/histogram-mean", "mig/histogram-sampled", "modularity/histogram-mean"),
    *("mig/corrected", "modularity/corrected", "infomec/corrected"),
)


class TrainedGroup(NamedTuple):
    """Scores of trained runs; `widths` of the repetitions measure intervals."""

    names: Sequence[str]
    rows: int
    repetitions: int
    widths: int


TRAINED: dict[str, TrainedGroup] = {
    "trained": TrainedGroup(NAMES_OF_TRAINED, 4_096, 200, 20),
    "trained-sap": TrainedGroup(("sap/linear-svm",), 4_096, 600, 100),
    "exact": TrainedGroup(("mi/exact", "tc/exact", "dimension-kl/exact"), 256, 200, 200),
}


class Cell(NamedTuple):
    """A group of scores on one case with one number of rows."""

    group: str
    case: str
    rows: int
    repetitions: int

    @property
    def key(self) -> str:
        return f"{self.group}, {self.case}, {self.rows}"

    @property
    def is_trained(self) -> bool:
        return self.group in TRAINED


def list_cells(quick: bool = False) -> Iterator[Cell]:
    """Yield the cells of the table in the order in which they are measured."""
    for place, rows in enumerate(ROWS[:1] if quick else ROWS):
        if place:
            for name, of in TRAINED.items():
                yield from (Cell(name, recipe, of.rows, of.repetitions) for recipe in RECIPES)
        for name, group in GROUPS.items():
            count = group.repetitions[place]
            if quick:
                count = {"codes": 400, "mig": 200, "conditioning": 200}.get(name, 0)
            cases = CASES[:1] if name == "partners" else CASES if name in CHECKED and not place else CASES[:4]
            yield from (Cell(name, case, rows, count) for case in cases if count)


def repeat(cell: Cell, numbers: Sequence[int], widths: int | None = None) -> list[list[Score]]:
    """Return the scores of the repetitions with these numbers.

    The first `widths` of all repetitions measure intervals, or else as many as the group states.
    """
    if cell.is_trained:
        return list(_repeat_trained(TRAINED[cell.group], cell.case, numbers))
    group = GROUPS[cell.group]
    if widths is None:
        widths = cell.repetitions if group.widths is None else group.widths[ROWS.index(cell.rows)]
    return list(_repeat_synthetic(group, cell.case, cell.rows, numbers, widths))


def find_truth(cell: Cell) -> dict[str, float]:
    """Return the values over very many rows of the scores that promise it."""
    if not cell.is_trained:
        return _find_truth_of_synthetic(cell.group, cell.case)
    return {} if cell.group == "exact" else _find_truth_of_trained(cell.case, TRAINED[cell.group].names)


def _repeat_synthetic(group: Group, case: str, rows: int, numbers: Sequence[int], widths: int) -> Iterator[list[Score]]:
    fixed = draw_case(case, rows, np.random.default_rng((7, rows))) if group.fixed_rows else None
    for number in numbers:
        codes, factors = fixed or draw_case(case, rows, np.random.default_rng((number, rows)))
        options = {} if number < widths else {"resamples": 0}
        yield [score for call in group.calls for score in _as_list(call(codes, factors, seed=number, **options))]


def _as_list(made: Score | list[Score]) -> list[Score]:
    return made if isinstance(made, list) else [made]


@cache
def _find_truth_of_synthetic(group: str, case: str) -> dict[str, float]:
    if group not in ("corrected", "kernels"):
        return {}
    codes, factors = draw_case(case, ROWS_OF_TRUTH, np.random.default_rng(99))
    if group == "kernels":
        return {"kid/given": find_kernel_distance(codes, move(codes))}
    calls = [partial(call, samples=None, resamples=0) for call in GROUPS[group].calls]
    return {score.name: score.value for call in calls for score in _as_list(call(codes, factors, seed=0))}


def find_kernel_distance(first: np.ndarray, second: np.ndarray) -> float:
    r"""Return the squared kernel distance from moments, since a mean over all pairs would take too long.

    E (x . y / d + 1)^3 = sum_j binom(3, j) d^-j <E x^(j), E y^(j)> with tensor powers x^(j), so the distance is that
    of moments, sum_j binom(3, j) d^-j |E x^(j) - E y^(j)|^2.
    """
    size, total = first.shape[1], 0.0
    gaps = [a - b for a, b in zip(_find_moments(first), _find_moments(second), strict=True)]
    for order, gap in enumerate(gaps, start=1):
        total += math.comb(3, order) / size**order * float(np.square(gap).sum())
    return total


def _find_moments(x: np.ndarray) -> list[np.ndarray]:
    """Return the means of the first three tensor powers of rows [rows, features]."""
    sums: list[Any] = [0.0, 0.0, 0.0]
    for part in np.array_split(x, max(1, len(x) // 10_000)):
        squares = (part[:, :, None] * part[:, None]).reshape(len(part), -1)
        for place, found in enumerate((part.sum(0), squares.sum(0), squares.T @ part)):
            sums[place] = sums[place] + found
    return [total / len(x) for total in sums]


@cache
def train(recipe: str) -> Evaluation:
    """Return a young model of a recipe on random rows of sprites, encoded."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"data": "sprites", "network": "mlp", "batch": 128, "steps": 300, "seed": 0, **RECIPES[recipe]}
        run = ub.train(recipe, root=folder, device="cpu", **settings)
        whole = run.evaluation
        return Evaluation(run.model, run.dataset, whole.rows[whole.choose(ROWS_OF_TRAINED)])


def _repeat_trained(group: TrainedGroup, recipe: str, numbers: Sequence[int]) -> Iterator[list[Score]]:
    """Yield scores of rows that are drawn anew in each repetition; exact ones draw as many posterior samples."""
    whole, rows = train(recipe), group.rows
    if "mi/exact" in group.names:
        whole = whole.take(torch.arange(ROWS_OF_EXACT))
    for number in numbers:
        again = Evaluation(whole.model, whole.dataset, whole.rows, seed=number)
        again.__dict__["posterior"] = whole.posterior
        settings = {"samples": rows, "train": 2 * rows // 3, "test": rows - 2 * rows // 3, "batches": rows // 256}
        settings |= {} if number < group.widths else {"resamples": 0}
        known = {key for name in group.names for key in metrics.metric[name].settings}
        yield metrics.evaluate(again, group.names, **{key: value for key, value in settings.items() if key in known})


def _find_truth_of_trained(recipe: str, names: Sequence[str]) -> dict[str, float]:
    """Return the values over the whole population."""
    chosen = [n for n in names if not n.startswith(("sap", "tc/", "mi/", "dimension")) and "histogram" not in n]
    settings = {"samples": ROWS_OF_TRAINED, "resamples": 0} if chosen else {}
    return {score.name: score.value for score in metrics.evaluate(train(recipe), chosen, **settings)}
