"""Do scores agree on which run is better? Rank correlations over the runs of a folder, with bootstrap intervals.

    unbraid evaluate runs/A runs/B --metric full --metric udr --metric mig/disentanglement_lib --rows 10000
    python benchmarks/agreement.py results/disagreement --csv table.csv --figure agreement.png

Reads `config.yaml` and `scores.jsonl` of every run in FOLDER/runs, the newest score of each name; no weights. Scores
that some run lacks are left out. Intervals (95%) come from 4,000 resamplings of the runs. `--within` first takes from
every score its mean over the runs that differ in the seed alone. A score with - before its name is turned round.
"""

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from scipy.stats import rankdata

from unbraid.metrics import Score

MOST_LABELS = "downstream/logistic/most-labels"
"""Stands for the downstream score with the most labels, whose name states how many there were."""

SCORES = (
    *("mig/exact", "mig/histogram-mean", "mig/histogram-sampled", "mig/disentanglement_lib"),
    *("modularity/histogram-mean", "infomec/knn/modularity", "infomec/knn/compactness", "infomec/knn/explicitness"),
    *("dci/booster/disentanglement", "dci/random-forest/disentanglement"),
    *("dci/lasso/disentanglement", "dci/booster/completeness", "dci/booster/informativeness", "sap/linear-svm"),
    *("explicitness/logistic", MOST_LABELS, "attributes/mlp", "betavae/logistic"),
    *("factorvae/majority-vote", "factorvae/disentanglement_lib", "irs/quantile"),
)
UNLABELLED = ("udr/spearman", "udr/lasso", "-tc/exact", "elbo/closed-form")
TC = ("tc/exact", "tc/stratified", "tc/ratio", "tc/gaussian/sampled", "tc/gaussian/mean")


def read(folder: Path) -> dict[str, dict[str, Score]]:
    """Return the newest scores by run, ordered by recipe, beta and seed."""
    found = {}
    for path in (folder / "runs").glob("*/scores.jsonl"):
        config = yaml.safe_load((path.parent / "config.yaml").read_text("utf-8"))
        scores = map(Score.from_record, map(json.loads, path.read_text("utf-8").splitlines()))
        beta, seed = config["objective"].get("beta", 1.0), config["training"]["seed"]
        found[config["objective"]["name"], beta, seed] = {score.name: score for score in scores}
    return {f"{name} {beta:g}, seed {seed}": found[name, beta, seed] for name, beta, seed in sorted(found)}


def choose_names(names: Sequence[str], known: set[str]) -> tuple[str, ...]:
    """Return the names of scores that every run has."""
    head, tail = MOST_LABELS.split("most")
    labels = [int(n.removeprefix(head).removesuffix(tail)) for n in known if n.startswith(head) and n.endswith(tail)]
    most = f"{head}{max(labels, default=0)}{tail}"
    named = (most if name == MOST_LABELS else name for name in names)
    return tuple(dict.fromkeys(name for name in named if name.lstrip("-") in known))


def columns(runs: dict[str, dict[str, Score]], names: tuple[str, ...], within: bool = False) -> np.ndarray:
    """Return values [runs, scores]; `within` subtracts the mean of each setting."""
    values = np.array([[(-1) ** (n[0] == "-") * own[n.lstrip("-")].value for n in names] for own in runs.values()])
    if within:
        setting = np.array([name.partition(",")[0] for name in runs])
        for one in set(setting):
            values[setting == one] -= values[setting == one].mean(0)
    return values


def correlations(values: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of all pairs of columns, 0 if one is constant."""
    ranks = rankdata(values, axis=0)
    ranks -= ranks.mean(0)
    length = np.sqrt((ranks**2).sum(0))
    return ranks.T @ ranks / np.maximum(np.outer(length, length), 1e-12)


def intervals(values: np.ndarray) -> np.ndarray:
    """Return the 2.5% and 97.5% quantiles [2, scores, scores] over resampled runs."""
    rng = np.random.default_rng(0)
    drawn = [correlations(values[rng.integers(len(values), size=len(values))]) for _ in range(4000)]
    return np.quantile(drawn, [0.025, 0.975], axis=0)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def draw(title: str, names: tuple[str, ...], matrix: np.ndarray, path: Path) -> None:
    """Draw the correlations as a labelled heat map."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11.5, 10.5), layout="constrained")
    axes.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1)
    for (i, j), r in np.ndenumerate(matrix):
        axes.text(j, i, f"{r:.2f}", ha="center", va="center", fontsize=7, color="white" if abs(r) > 0.7 else "black")
    axes.set_title(title)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--within", action="store_true")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    runs = read(arguments.folder)
    common = set.intersection(*map(set, runs.values()))
    names = choose_names((*SCORES, *UNLABELLED), common)
    shown = choose_names((*SCORES, *TC, "elbo/closed-form"), common)
    rows = [[name, *(f"{own[name].value:.3g}" for own in runs.values())] for name in shown]
    print(markdown(["score", *runs], rows), end="\n\n")
    values = columns(runs, names, arguments.within)
    best = [[name, list(runs)[k]] for name, k in zip(names, values.argmax(0), strict=True)]
    print(markdown(["score", "best run"], best), end="\n\n")
    matrix, (low, high) = correlations(values), intervals(values)
    pairs = zip(*np.tril_indices(len(names), -1), strict=True)
    rows = [[names[j], names[i], f"{matrix[i, j]:.2f} ({low[i, j]:.2f}..{high[i, j]:.2f})"] for i, j in pairs]
    print(markdown(["score", "score", "Spearman's correlation"], rows))
    if arguments.csv:
        head = sorted(common)
        lines = [["run", *head], *([run, *(f"{own[name].value:.6g}" for name in head)] for run, own in runs.items())]
        with arguments.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    if arguments.figure:
        draw(f"Spearman's rank correlation over {len(runs)} runs", names, matrix, arguments.figure)


if __name__ == "__main__":
    main()
