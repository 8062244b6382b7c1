r"""Histogram scores for the value over all rows: MIG, modularity and InfoMEC without the bias of plug-in estimates.

The published histogram scores depend on the number of rows in three ways. Cells that chance fills raise every mutual
information. Bins between the extremes widen with every outlier. A best or second best latent is a maximum of noisy
numbers, so that the gap of two equal latents is above 0. The protocol `corrected` differs from `histogram-mean` and
`histogram` in three ways:

- 20 bins with about equally many rows for each latent, which outliers do not move; an edge within half a bin of a clear
  gap between clumps of codes lies in the gap;
- information without its bias, by occupied cells (miller1955):  I - (cells - bins - values + 1) / 2n;
- latents are chosen in one half of the rows and measured in the other, and vice versa:

    MIG     1/K sum_k [ I_B(z_a; v_k) - I_B(z_b; v_k) ] / H(v_k),      a, b: best and second best latent in half A
    modularity_j = 1 - sum_{k != k(j)} m^A_{jk} m^B_{jk} / ( (K - 1) m^A_{j k(j)} m^B_{j k(j)} )
    InfoM, InfoC: the shares max N / sum N with the place of the maximum from the other half

  each as the mean over both directions. Modularity and InfoM leave out latents that know less than .01 of every
  factor's entropy, and all ratios are of information that may be a little below 0.

The value may therefore be a little below 0, or above 1. Its interval is for the value over all rows (`mig/exact` has
none of these troubles but looks at posteriors). No interval is printed below 10 rows for each cell, where the
correction fails, and for codes in clumps that touch, which bins cut as chance wants.

Halves are drawn by the places of rows: two models on the same rows share them, so that chance cancels in their
difference. Rows in another order therefore give another value, rarely outside the interval.

**The interval** is the value -+ t standard deviations over draws of both halves' information, as it was found plus
random errors (`JointHistograms.draw_half_errors`). Halves of the rows would not do: products and choices of noisy
numbers vary with 1/n, and 1/n of a quarter of the rows is four times that of all. Information within three errors of 0
counts as 0 in the draws, since products with it would vary more.

Reference: Miller (1955), Note on the bias of information estimates. In Information theory in psychology.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from unbraid.errors import UsageError
from unbraid.metrics.arrays import FactorLabels, check_at_least, find_device, name_latents, to_labels, to_matrix
from unbraid.metrics.base import Evaluation, Score
from unbraid.metrics.code_metrics import code_metric
from unbraid.metrics.information.drawn_information import SIGNIFICANT
from unbraid.metrics.information.histogram import JointHistograms, discretise_by_rank, has_touching_clumps
from unbraid.metrics.information.mig import note_left_out
from unbraid.metrics.intervals import ALL_ROWS, no_interval, resampling_interval

MIN_ROWS_PER_CELL = 10
MIN_SHARE = 0.01
"""Share of a factor's entropy that an informed latent knows."""

PROTOCOL = "corrected"
TITLES = {"mig": "MIG", "modularity": "Modularity", "infomec": "InfoMEC"}
Family = Literal["mig", "modularity", "infomec"]

corrected_metric = partial(
    code_metric, settings="bins samples resamples", needs=("factors",), invariant=("scale",), reference="miller1955"
)


class HalvedInformation(NamedTuple):
    """Corrected I [latents, factors] of two halves of the rows, and H [factors] of all."""

    first: np.ndarray
    second: np.ndarray
    entropies: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return (self.first + self.second) / 2


def measure_gaps(found: HalvedInformation) -> np.ndarray:
    """Return (best - second best) / H(v) [factors]; each half chooses the two latents that the other measures."""
    gaps = []
    for chooser, measured in ((found.first, found.second), (found.second, found.first)):
        second, best = np.argsort(chooser, axis=0)[-2:]
        columns = np.arange(measured.shape[1])
        gaps.append(measured[best, columns] - measured[second, columns])
    return np.mean(gaps, axis=0) / found.entropies


def measure_modularity(found: HalvedInformation) -> np.ndarray:
    """Return the modularity of each informed latent."""
    informed = (found.mean / found.entropies).max(1) >= MIN_SHARE
    squared = (found.first * found.second)[informed]  # unbiased, as the halves are independent
    own = found.mean[informed].argmax(1)[:, None]
    greatest = np.take_along_axis(squared, own, axis=1)[:, 0]
    others = (squared.sum(1) - greatest) / (squared.shape[1] - 1)
    return 1 - others / np.where(greatest > 0, greatest, np.inf)


def measure_shares(found: HalvedInformation, by_factor: bool) -> np.ndarray:
    """Return the largest share of each informed latent's information, or of each factor's if `by_factor`."""
    halves = [part / found.entropies for part in (found.first, found.second)]  # N [latents, factors]
    if by_factor:
        halves = [part.T for part in halves]
    else:
        informed = ((halves[0] + halves[1]) / 2).max(1) >= MIN_SHARE
        halves = [part[informed] for part in halves]
    best = [np.take_along_axis(b, a.argmax(1)[:, None], axis=1)[:, 0] for a, b in (halves, halves[::-1])]
    total = (halves[0] + halves[1]).sum(1)
    return (best[0] + best[1]) / np.where(total > 0, total, np.inf)


def measure_parts(family: Family, found: HalvedInformation) -> dict[str | None, float]:
    """Return the value of each part of a family of scores."""
    if family == "mig":
        return {None: float(measure_gaps(found).mean())}
    if family == "modularity":
        each = measure_modularity(found)
        return {None: float(each.mean()) if len(each) else 0.0}
    width, factors = found.first.shape
    return {
        "modularity": _rescale(measure_shares(found, by_factor=False), factors),
        "compactness": _rescale(measure_shares(found, by_factor=True), width) if width > 1 else 1.0,
    }


def _rescale(shares: np.ndarray, others: int) -> float:
    return float((shares.mean() - 1 / others) / (1 - 1 / others)) if len(shares) else 0.0


class _Table(NamedTuple):
    """Codes and factors of the rows that are scored."""

    codes: np.ndarray
    labels: FactorLabels
    bins: int
    device: torch.device

    @classmethod
    def read(
        cls, codes: Any, factors: Any, names: Sequence[str] | None, bins: int, samples: int | None, seed: int
    ) -> tuple["_Table", np.random.Generator]:
        """Return the checked rows, at most `samples` of them, and the generator that drew them."""
        check_at_least(2, bins=bins)
        values, rng = to_matrix("codes", codes), np.random.default_rng(seed)
        labels = to_labels(factors, len(values), names)
        if samples is not None and samples < len(values):
            check_at_least(4, samples=samples)
            rows = rng.choice(len(values), samples, replace=False)
            values, labels = values[rows], to_labels(labels.values[rows], samples, labels.names)
        return cls(values, labels, bins, find_device(codes)), rng

    def measure(self, rows: np.ndarray) -> HalvedInformation:
        """Return the information of both halves of these rows, in their order, in bins of all of them."""
        labels = self.labels.select(rows)
        histograms = JointHistograms(discretise_by_rank(self.codes[rows], self.bins), self.bins, labels)
        halves = np.array_split(np.arange(len(rows)), 2)
        (first, entropies), (second, others) = (histograms.corrected_information(half) for half in halves)
        return HalvedInformation(first, second, np.maximum((entropies + others) / 2, 1e-300))

    def draw(self, found: HalvedInformation, count: int, rng: np.random.Generator) -> list[HalvedInformation]:
        """Draw the information of other rows: what was found in these plus random errors."""
        histograms = JointHistograms(discretise_by_rank(self.codes, self.bins), self.bins, self.labels)
        errors, of_entropies = histograms.draw_half_errors(2 * count, rng)
        (first, second), (of_first, of_second) = np.split(errors, 2), np.split(of_entropies, 2)
        centre = np.where(found.mean > SIGNIFICANT * (first + second).std(0) / 2, found.mean, 0.0)
        entropies = np.maximum(found.entropies + (of_first + of_second) / 2, 1e-300)
        return [HalvedInformation(*one) for one in zip(centre + first, centre + second, entropies, strict=True)]

    def explain_no_interval(self, resamples: int) -> str | None:
        """Return why there is no interval, or None."""
        cells = self.bins * max(self.labels.sizes)
        if len(self.codes) < MIN_ROWS_PER_CELL * cells:
            return f"{len(self.codes):,} rows are too few for the correction of histograms of {cells:,} cells"
        if has_touching_clumps(self.codes, self.bins):
            return "codes form clumps that touch, and chance decides how the bins cut them"
        return None if resamples > 1 else "it needs resamples=2 or more"


@corrected_metric(
    "mig/corrected",
    "Mutual information gap of posterior means over all rows, plug-in bias removed.",
    annotate=note_left_out,
    noise=0.0,
)
@corrected_metric("modularity/corrected", "Modularity of posterior means over all rows, plug-in bias removed.")
@corrected_metric("infomec/corrected", "InfoMEC's modularity and compactness over all rows, plug-in bias removed.")
def score_corrected(
    codes: Any,
    factors: Any,
    *,
    family: Family,
    names: Sequence[str] | None = None,
    latents: Sequence[str] | None = None,
    bins: int = 20,
    samples: int | None = 10_000,
    resamples: int = 100,
    seed: int = 0,
) -> list[Score]:
    """Return the scores of a family from codes [rows, latents] and factors [rows, factors], for all rows.

    If there are more than `samples` rows, that many are drawn without repetition (None takes all). The interval comes
    from `resamples` draws of the information.
    """
    table, rng = _Table.read(codes, factors, names, bins, samples, seed)
    found, drawn, why = _measure_and_draw(table, family, resamples, rng)
    parts, covers = measure_parts(family, found), no_interval(why) if why else ALL_ROWS
    details = _describe(table, found, latents)
    if family == "mig":
        details = {"gaps": dict(zip(table.labels.names, measure_gaps(found).tolist(), strict=True)), **details}
    scores = []
    for part, value in parts.items():
        interval = resampling_interval(value, [one[part] for one in drawn])
        scores.append(Score(family, PROTOCOL, value, len(table.codes), interval, part, details=details, covers=covers))
    return scores


def _measure_and_draw(
    table: _Table, family: Family, resamples: int, rng: np.random.Generator
) -> tuple[HalvedInformation, list[dict[str | None, float]], str | None]:
    """Return the information, the parts of a family in other draws of rows, and why there are none."""
    width = table.codes.shape[1]
    if family == "mig" and width < 2:
        raise UsageError("MIG compares the best latent with the second best, but there is only 1 latent.")
    if family != "mig" and len(table.labels.sizes) < 2:
        raise UsageError(f"{TITLES[family]} compares factors with each other, but there is only one.")
    found, why = table.measure(rng.permutation(len(table.codes))), table.explain_no_interval(resamples)
    return found, [measure_parts(family, one) for one in ([] if why else table.draw(found, resamples, rng))], why


def draw_differences(
    first: Evaluation, second: Evaluation, family: Family, settings: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Draw the difference of two models' scores, second - first, over other rows; nothing if one has no interval.

    The weights of rows are the same in both, so what the models share cancels.
    """
    drawn = []
    for each in (first, second):
        codes = each.labelled(settings["factors"]).tabulate(settings["samples"], settings["factors"])
        table, rng = _Table.read(codes.codes, codes.factors, codes.names, settings["bins"], None, first.seed)
        drawn.append(_measure_and_draw(table, family, settings["resamples"], rng)[1])
    if not all(drawn):
        return {}
    names = {part: "/".join(filter(None, (family, PROTOCOL, part))) for one in drawn[0][:1] for part in one}
    pairs = list(zip(*drawn, strict=True))
    return {name: [after[part] - before[part] for before, after in pairs] for part, name in names.items()}


def mig_corrected(codes: Any, factors: Any, **settings: Any) -> Score:
    """Return the mutual information gap, for all rows; `settings` are those of `score_corrected`."""
    return score_corrected(codes, factors, family="mig", **settings)[0]


def modularity_corrected(codes: Any, factors: Any, **settings: Any) -> Score:
    """Return the modularity, for all rows, or 0 if no latent is informed; `settings` are those of `score_corrected`."""
    return score_corrected(codes, factors, family="modularity", **settings)[0]


def infomec_corrected(codes: Any, factors: Any, **settings: Any) -> list[Score]:
    """Return modularity and compactness of InfoMEC, for all rows; `settings` are those of `score_corrected`.

    Explicitness needs no histogram; that of `infomec` has an interval for its own number of rows.
    """
    return score_corrected(codes, factors, family="infomec", **settings)


def _describe(table: _Table, found: HalvedInformation, latents: Sequence[str] | None) -> dict[str, Any]:
    names, mean = name_latents(table.codes.shape[1], latents), found.mean
    informed = (mean / found.entropies).max(1) >= MIN_SHARE
    return {
        "corrected_information": dict(zip(table.labels.names, mean.T.tolist(), strict=True)),
        "latents": list(names),
        "informed": [name for name, known in zip(names, informed, strict=True) if known],
        "bins": table.bins,
    }
