"""How often 95% intervals contain what they promise, score by score.

    python benchmarks/coverage.py                    # results/coverage, over an hour of one core; continues a stop
    python benchmarks/coverage.py --quick            # fewer repetitions of cheap scores, half a minute; writes nothing
    python benchmarks/coverage.py --only downstream  # one group of scores
    python benchmarks/coverage.py --plan             # only the page, with the cost of what is not measured yet

A repetition draws rows anew and scores them. A "spread at n rows" must contain the mean over repetitions, a "value over
all rows" the value over a million rows (over the whole population for trained runs), a "value over all draws" the mean
over other draws from the same rows. Four synthetic codes have 10 latents and 5 factors of 3 to 10 values:

    clear   five latents are the standardised factors with noise .3, five are noise
    tied    two latents for each factor, with noise .5 of their own
    weak    five latents hold .4 of a factor in noise 1
    heavy   as clear, with noise .5 of Student's t distribution with 3 degrees of freedom

A fifth case is there to check what was derived on the others: every latent of `mixed` is a sum of all factors with
Normal weights (deviation .6) and noise .5 of Laplace's distribution.

Trained runs are a beta-TCVAE and a beta-VAE on 40,000 random rows of sprites, 300 steps each; exact scores
see 8,000 of them.

Where an interval is costly, `widths` of the repetitions measure it; each of these widths is then tried around the value
of every repetition. An entry lies outside .92 to .98 if the 95% interval of the coverage itself for that many
repetitions (clopper1934) does. Where less than a tenth of the repetitions print an interval, an entry counts as "none".
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from coverage_page import CASES, RECIPES, describe

import unbraid as ub
from unbraid import atomic, metrics
from unbraid.metrics import Evaluation, Score
from unbraid.metrics.intervals import ALL_ROWS

SIZES = (3, 4, 6, 8, 10)
ROWS = (1_000, 10_000)
ROWS_OF_TRUTH = 1_000_000
ROWS_OF_TRAINED = 40_000
ROWS_OF_EXACT = 8_000
MIN_SHARE_PRINTED = 0.1

MIXING = 0.6 * np.random.default_rng(123).standard_normal((5, 10))
CHECKED = ("codes", "sap", "infomec", "explicitness", "neighbours")
"""Groups that are measured on the fifth case, too."""

NOT_ASKED = "resamples"
"""Word of a score that was measured without its interval."""

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
    return measure(first, 1.1 * second + 0.1, seed=seed, **settings)


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
        (800, 300),
        (60, 8),
    ),
    "kernels": Group([without(partial(compare_features, lambda a, b, seed: metrics.kid(a, b)))], (400, 400)),
    "interventions": Group([without(metrics.betavae)], (200, 200), fixed_rows=True),
    "votes": Group([metrics.factorvae], (200, 200), fixed_rows=True),
    "downstream": Group([metrics.downstream], (200, 200), (20, 8)),
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
NAMES_OF_EXACT = ("mi/exact", "tc/exact", "dimension-kl/exact")


def repeat_synthetic(group: Group, case: str, rows: int, count: int) -> Iterator[list[Score]]:
    """Yield the scores of each repetition."""
    widths = count if group.widths is None else group.widths[ROWS.index(rows)]
    fixed = draw_case(case, rows, np.random.default_rng((7, rows))) if group.fixed_rows else None
    for number in range(count):
        codes, factors = fixed or draw_case(case, rows, np.random.default_rng((number, rows)))
        options = {} if number < widths else {"resamples": 0}
        yield [score for call in group.calls for score in _as_list(call(codes, factors, seed=number, **options))]


def _as_list(made: Score | list[Score]) -> list[Score]:
    return made if isinstance(made, list) else [made]


@cache
def find_truth(group: str, case: str) -> dict[str, float]:
    """Return the values over very many rows of the scores that promise it."""
    if group not in ("corrected", "kernels"):
        return {}
    codes, factors = draw_case(case, ROWS_OF_TRUTH if group == "corrected" else 20_000, np.random.default_rng(99))
    if group == "corrected":
        calls = [partial(call, samples=None, resamples=0) for call in GROUPS[group].calls]
    else:
        calls = list(GROUPS[group].calls)
    return {score.name: score.value for call in calls for score in _as_list(call(codes, factors, seed=0))}


@cache
def train(recipe: str) -> Evaluation:
    """Return a young model of a recipe on random rows of sprites, encoded."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"data": "sprites", "network": "mlp", "batch": 128, "steps": 300, "seed": 0, **RECIPES[recipe]}
        run = ub.train(recipe, root=folder, device="cpu", **settings)
        whole = run.evaluation
        return Evaluation(run.model, run.dataset, whole.rows[whole.choose(ROWS_OF_TRAINED)])


def repeat_trained(recipe: str, rows: int, count: int, names: Sequence[str], widths: int) -> Iterator[list[Score]]:
    """Yield scores of `rows` rows, drawn anew in each repetition; exact ones draw `rows` posterior samples."""
    whole = train(recipe)
    if "mi/exact" in names:
        whole = whole.take(torch.arange(ROWS_OF_EXACT))
    for number in range(count):
        again = Evaluation(whole.model, whole.dataset, whole.rows, seed=number)
        again.__dict__["posterior"] = whole.posterior
        settings = {"samples": rows, "train": 2 * rows // 3, "test": rows - 2 * rows // 3, "batches": rows // 256}
        settings |= {} if number < widths else {"resamples": 0}
        known = {key for name in names for key in metrics.metric[name].settings}
        yield metrics.evaluate(again, names, **{key: value for key, value in settings.items() if key in known})


def find_truth_of_trained(recipe: str, names: Sequence[str]) -> dict[str, float]:
    """Return the values over the whole population."""
    chosen = [n for n in names if not n.startswith(("sap", "tc/", "mi/", "dimension")) and "histogram" not in n]
    settings = {"samples": ROWS_OF_TRAINED, "resamples": 0} if chosen else {}
    return {score.name: score.value for score in metrics.evaluate(train(recipe), chosen, **settings)}


def summarise(repetitions: Sequence[Sequence[Score]], truth: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Return coverage and its parts for each score."""
    by_name: dict[str, list[Score]] = {}
    for scores in repetitions:
        for score in scores:
            by_name.setdefault(score.name, []).append(score)
    return {name: _summarise_score(scores, truth.get(name)) for name, scores in by_name.items()}


def _summarise_score(scores: Sequence[Score], truth: float | None) -> dict[str, Any]:
    values = np.array([score.value for score in scores])
    printed = [score for score in scores if score.interval is not None]
    asked = [score for score in scores if score.interval is not None or NOT_ASKED not in score.covers]
    record: dict[str, Any] = {
        "repetitions": len(values),
        "mean": float(values.mean()),
        "deviation": float(values.std(ddof=1)),
        "printed": len(printed),
    }
    if len(printed) <= MIN_SHARE_PRINTED * len(asked):
        return {**record, "promise": next((s.covers for s in asked if s.interval is None), scores[0].covers)}
    promise = printed[0].covers
    target = truth if promise == ALL_ROWS and truth is not None else float(values.mean())
    record |= {"promise": promise, "target": target}
    if values.std() < 1e-12:
        return {**record, "note": "the same value in every repetition"}
    if len(printed) == len(values):
        hits = np.array([s.interval[0] <= target <= s.interval[1] for s in scores])
        coverage = float(hits.mean())
    else:
        reach = np.array([_find_reach(score) for score in printed])
        inside = (values - reach[:, :1] <= target) & (target <= values + reach[:, 1:])  # [widths, repetitions]
        coverage = float(inside.mean())
        record["widths"] = len(printed)
    width = float(np.mean([s.interval[1] - s.interval[0] for s in printed]) / 2)
    return {**record, "coverage": round(coverage, 3), "half_width": width}


def _find_reach(score: Score) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value.

    An end at 0 or 1 was cut off there. That changes no coverage, because no target lies beyond, but around another
    value the interval would not be cut at the same distance; so it gets the reach of the other end.
    """
    low, high = score.interval
    below, above = score.value - low, high - score.value
    return (above if low == 0 else below), (below if high == 1 else above)


def list_cells(quick: bool) -> Iterator[tuple[str, str, int, Callable[[], dict[str, Any]]]]:
    """Yield group, case, rows and the function that measures a cell."""
    for place, rows in enumerate(ROWS[:1] if quick else ROWS):
        if place:
            yield from _list_trained()
        for name, group in GROUPS.items():
            count = group.repetitions[place]
            if quick:
                count = {"codes": 400, "mig": 200, "conditioning": 200}.get(name, 0)
            cases = CASES[:1] if name == "partners" else CASES if name in CHECKED and not place else CASES[:4]
            for case in cases:
                if count:
                    yield name, case, rows, partial(_measure, group, name, case, rows, count)


def _list_trained() -> Iterator[tuple[str, str, int, Callable[[], dict[str, Any]]]]:
    for recipe in RECIPES:
        yield "trained", recipe, 4_096, partial(_measure_trained, recipe, 4_096, NAMES_OF_TRAINED, 200, 20)
    for recipe in RECIPES:
        yield "trained-sap", recipe, 4_096, partial(_measure_trained, recipe, 4_096, ("sap/linear-svm",), 600, 100)
    for recipe in RECIPES:
        yield "exact", recipe, 256, partial(_measure_trained, recipe, 256, NAMES_OF_EXACT, 200, 200)


def _measure(group: Group, name: str, case: str, rows: int, count: int) -> dict[str, Any]:
    return summarise(list(repeat_synthetic(group, case, rows, count)), find_truth(name, case))


def _measure_trained(recipe: str, rows: int, names: Sequence[str], count: int, widths: int) -> dict[str, Any]:
    truth = find_truth_of_trained(recipe, [n for n in names if "exact" not in n])
    return summarise(list(repeat_trained(recipe, rows, count, names, widths)), truth)


def read_record(path: Path | None) -> dict[str, Any]:
    """Return what the file holds, in the order of the cells, whenever they were measured."""
    cells = json.loads(path.read_text())["cells"] if path is not None and path.exists() else {}
    order = [f"{group}, {case}, {rows}" for group, case, rows, _ in list_cells(quick=False)]
    return {"cells": {key: cells[key] for key in order if key in cells}}


def estimate_missing(record: dict[str, Any]) -> dict[str, float]:
    """Return the minutes that missing cells would take, from a repetition with an interval and one without."""
    minutes: dict[str, float] = {}
    for name, case, rows, _ in list_cells(quick=False):
        if f"{name}, {case}, {rows}" in record["cells"] or name not in GROUPS:
            continue
        group, place = GROUPS[name], ROWS.index(rows)
        seconds = []
        for widths in ((0, 0), (1, 1)):
            start = time.process_time()
            list(repeat_synthetic(group._replace(widths=widths), case, rows, 1))
            seconds.append(time.process_time() - start)
        count, of_widths = group.repetitions[place], (group.widths or group.repetitions)[place]
        total = seconds[0] * (count - of_widths) + seconds[1] * of_widths
        minutes[f"{name}, {case}, {rows}"] = total / 60
    return minutes


def measure_all(path: Path | None, quick: bool, only: str | None) -> dict[str, Any]:
    """Measure the cells that the file does not hold yet, and write it after each one."""
    record = read_record(path)
    for group, case, rows, measure in list_cells(quick):
        key = f"{group}, {case}, {rows}"
        if key in record["cells"] or (only is not None and group != only):
            continue
        start = time.process_time()
        record["cells"][key] = {"scores": measure(), "seconds": round(time.process_time() - start, 1)}
        for name, found in record["cells"][key]["scores"].items():
            print(f"{key:36} {name:44} {found.get('coverage', found.get('note', found['promise']))}", flush=True)
        if path is not None:
            atomic.write_text(path, json.dumps(record, indent=1))
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    path = None if asked.quick else asked.out / "coverage.json"
    if not asked.plan:
        measure_all(path, asked.quick, asked.only)
    if path is not None:
        record = read_record(path)
        atomic.write_text(path, json.dumps(record, indent=1))
        atomic.write_text(asked.out / "README.md", describe(record, estimate_missing(record) if asked.plan else {}))


if __name__ == "__main__":
    main()
