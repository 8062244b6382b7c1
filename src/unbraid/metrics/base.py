"""Evaluations: a model on data, encoded once for all metrics. Also the functions that choose, run and time metrics."""

import inspect
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, unknown
from unbraid.latents import Space
from unbraid.metrics.arrays import choose_factors
from unbraid.metrics.model_encoders import choose_encoder, has_convolutions, stack_encoders
from unbraid.metrics.needs import check_needs
from unbraid.metrics.own_metrics import blame_own_metric, check_own_scores
from unbraid.metrics.score import RANDOM_ROWS, MetricFacts, Score, metric, metric_protocol as metric_protocol
from unbraid.models import Model
from unbraid.names import FULL, PUBLISHED_PROTOCOLS, list_metric_names
from unbraid.networks.own_modules import find_users_networks
from unbraid.progress import track
from unbraid.registry import Entry, check_count
from unbraid.training.group import allow_tf32

Result = TypeVar("Result")

ROWS_OF_CONVOLUTIONS = 64
"""Rows of one pass through convolutions on a CPU, so that activations stay in its cache."""


class CodeTable(NamedTuple):
    """Codes [rows, latents], factor values [rows, factors], the names of their columns, and a seed.

    `shared` are results that other models on the same rows can use.
    """

    codes: Tensor
    factors: Tensor
    names: list[str]
    latents: list[str]
    seed: int
    shared: dict[Hashable, Any]

    def score(self, function: Callable[..., Result], **settings: Any) -> Result:
        """Call a function on arrays with this table."""
        accepted = inspect.signature(function).parameters
        named = {key: getattr(self, key) for key in ("names", "latents", "seed") if key in accepted}
        return function(self.codes, self.factors, **named, **settings)

    def to_cpu(self) -> "CodeTable":
        return self._replace(codes=self.codes.cpu(), factors=self.factors.cpu())


class Evaluation:
    """A model on data. Each row is encoded when a metric first needs it, and all metrics share the codes.

    `rows` restricts it to a held-out split; None means the whole data set. "All rows", q(z) and "the population" then
    mean these rows, too: no score looks beyond them. A score of factors uses only the rows that have labels of all its
    factors and states how many do not (`unlabelled`). `peers` are other models on the same rows.
    """

    def __init__(
        self,
        model: Model,
        dataset: FactorDataset,
        rows: Tensor | None = None,
        seed: int = 0,
        batch: int = 4096,
        precision: str = "f32",
    ) -> None:
        self.model = model.eval()
        self.dataset = dataset
        self.rows = torch.arange(len(dataset), device=dataset.device) if rows is None else rows.to(dataset.device)
        self.held_out = rows is not None
        self.which = "held out" if self.held_out else "all"
        self.seed = seed
        self.batch = batch
        self.precision = precision
        self.trained_on: int | None = None  # number of training rows, if known
        self.peers: tuple[Evaluation, ...] = ()
        self.shared: dict[Hashable, Any] = {}  # results that other models on the same rows can use
        self._cache: dict[Hashable, Any] = {}
        self._whole: tuple[Evaluation, Tensor] | None = None  # the evaluation that this is a part of, and its positions

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def _every(self) -> Tensor:
        return torch.arange(len(self), device=self.rows.device)

    @property
    def space(self) -> Space:
        return self.model.space

    @property
    def code_names(self) -> list[str]:
        return self.space.code_names

    @cached_property
    def posterior(self) -> dict[str, Tensor]:
        """Posterior parameters [rows, parameters] by block."""
        return self.encode_posterior(self._every)

    @cached_property
    def means(self) -> Tensor:
        """Deterministic codes [rows, width]."""
        return self.space.center(self.posterior)

    @cached_property
    def samples(self) -> Tensor:
        """One posterior sample per row [rows, width], fixed by the seed."""
        return self.draw_codes(self._every)

    @property
    def uses_tf32(self) -> bool:
        """True if encoding may use TF32 on a GPU, as for runs that were trained in TF32 or bfloat16."""
        return self.precision in ("tf32", "bf16")

    @cached_property
    def pass_size(self) -> int:
        """Rows of one pass through the model; it changes the time and no result."""
        convolves = self.dataset.device.type == "cpu" and has_convolutions(self.model)
        return min(self.batch, ROWS_OF_CONVOLUTIONS) if convolves else self.batch

    def encode_posterior(self, positions: Tensor) -> dict[str, Tensor]:
        """Return posterior parameters [*positions, parameters] by block; encode only rows that are not encoded yet."""
        if "posterior" in self.__dict__:
            return {name: whole[positions] for name, whole in self.posterior.items()}
        if self._whole is not None:
            return self._whole[0].encode_posterior(self._whole[1][positions])
        known, whole = self.compute_once("encoded", lambda: (torch.zeros(len(self), dtype=torch.bool), {}))
        wanted = torch.zeros(len(self), dtype=torch.bool)
        wanted[positions.flatten().cpu()] = True
        missing = (wanted & ~known).nonzero().squeeze(-1).to(self.rows.device)
        encode = self.compute_once(
            "encoder", lambda: choose_encoder(self.model, self.dataset.device, self.uses_tf32, len(self), self.batch)
        )
        with torch.no_grad(), allow_tf32(self.uses_tf32):
            for chunk in track("encoding", missing.split(self.pass_size) if len(missing) else ()):
                for name, part in encode(self.dataset.inputs(self.rows[chunk])).items():
                    if name not in whole:
                        whole[name] = part.new_zeros(len(self), *part.shape[1:])
                    whole[name][chunk] = part
        known |= wanted
        return {name: part[positions] for name, part in whole.items()}

    def encode_means(self, positions: Tensor) -> Tensor:
        """Return deterministic codes [*positions, width]."""
        return self.space.center(self.encode_posterior(positions))

    def draw_codes(self, positions: Tensor) -> Tensor:
        """Return the rows of `samples` at these positions; the draws do not depend on the other positions."""
        return self.space.join(self.draw_values(positions))

    def draw_values(self, positions: Tensor) -> dict[str, Tensor]:
        """Return the draws behind `samples` by block; densities need them, and a code may not determine them."""
        seeds = noise.seed_tensor(self.seed, device=self.dataset.device)
        drawn = self.compute_once("noise", lambda: noise.draw(self.space.needs(len(self)), seeds, step=0))
        chosen = {name: drawn[name][0][positions] for name in self.space.blocks}
        return self.space.sample(self.encode_posterior(positions), chosen)

    def tabulate(
        self, count: int | None, factors: Sequence[str] | None = None, codes: Literal["mean", "sampled"] = "mean"
    ) -> CodeTable:
        """Return codes and factors of `count` random rows, or of all rows in order for None or too few rows."""
        every = count is None or count >= len(self)
        positions = self._every if every else self.choose(count)
        values, names = self.choose_factors(factors)
        chosen = self.encode_means(positions) if codes == "mean" else self.draw_codes(positions)
        return CodeTable(chosen, values[positions], names, self.code_names, self.seed, self.shared)

    @cached_property
    def factors(self) -> Tensor:
        """Factor values [rows, factors]."""
        if not self.dataset.factors:
            raise DataError(f"{self.dataset.name} has no factor labels, so this score cannot be computed on it.")
        return self.dataset.values_of(self.rows)

    def choose_factors(self, wanted: Sequence[str] | None) -> tuple[Tensor, list[str]]:
        """Return values [rows, chosen] and names of the wanted factors, in the data set's order; None means all."""
        values, names = self.factors, self.dataset.factor_names
        columns = choose_factors(names, wanted)
        if bool((values[:, columns] < 0).any()):
            raise DataError(f"Some rows of {self.dataset.name} lack a label; score evaluation.labelled(factors).")
        return values[:, columns], [names[k] for k in columns]

    def labelled(self, wanted: Sequence[str] | None = None) -> "Evaluation":
        """Return this model on the rows that have labels of all wanted factors (None means all)."""
        columns = choose_factors(self.dataset.factor_names, wanted)
        if self.dataset.is_grid:
            return self
        has_labels = self.dataset.has_labels(self.rows, columns)
        if bool(has_labels.all()):
            return self
        return self.compute_once(("labelled", *columns), lambda: self._restrict(has_labels, columns))

    def _restrict(self, has_labels: Tensor, columns: list[int]) -> "Evaluation":
        if int(has_labels.sum()) < 2:
            names = ", ".join(self.dataset.factor_names[k] for k in columns)
            raise DataError(
                f"{int(has_labels.sum())} of {len(self):,} rows have labels of all of {names}; "
                "choose other factors with factors=…."
            )
        part = self._take(self.rows[has_labels], "labelled rows")
        part._whole, part.peers = (self, has_labels.nonzero().squeeze(-1)), self.peers
        return part

    def _take(self, rows: Tensor, words: str) -> "Evaluation":
        part = Evaluation(self.model, self.dataset, rows, self.seed, self.batch, self.precision)
        part.held_out, part.which = self.held_out, f"{len(part):,} {words} of {self.which}"
        return part

    def compute_once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return `compute()`, which runs at the first call with this key; several scores may share a computation."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def share(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return `compute()`, which does not depend on the model; models that are encoded together compute it once."""
        if key not in self.shared:
            self.shared[key] = compute()
        return self.shared[key]

    def subsample(self, count: int) -> "Evaluation":
        """Return this model on `count` random rows; no score then looks beyond them."""
        count = check_count("rows", count, least=2)
        return self._take(self.rows[self.choose(count)], RANDOM_ROWS)

    def take(self, positions: Tensor) -> "Evaluation":
        """Return this model on the rows at these positions; it shares the codes that are encoded here."""
        part = self._take(self.rows[positions], "rows")
        part._whole = self, positions
        return part

    def forget(self) -> None:
        """Free the memory of all results; they are computed again on demand."""
        self._cache.clear()
        for name in [name for name, kind in vars(type(self)).items() if isinstance(kind, cached_property)]:
            self.__dict__.pop(name, None)

    def choose(self, count: int) -> Tensor:
        """Return the positions of `count` different rows in random order (all rows if there are fewer)."""
        seeds = noise.seed_tensor(self.seed, device=self.dataset.device)
        return noise.permutation(seeds, 0, len(self))[0, :count]


def encode_together(evaluations: Sequence[Evaluation]) -> None:
    """Encode the rows of several models with the same structure and rows in one stacked pass.

    A user's class may not allow that, or differ between models in what no weight shows: such a model encodes itself.
    """
    first = evaluations[0]
    if find_users_networks(first.model):
        return
    parts: list[dict[str, Tensor]] = []
    members, models = len(evaluations), [evaluation.model for evaluation in evaluations]
    group = stack_encoders(models, first.dataset.device, first.uses_tf32)
    with torch.no_grad(), group.computing():
        for chunk in track("encoding", first.rows.split(first.batch)):
            inputs = tree_map_only(Tensor, lambda x: x.expand(members, *x.shape), first.dataset.inputs(chunk))
            parts.append(group.apply("model", inputs))
    for name in first.space.blocks:
        whole = torch.cat([part[name] for part in parts], dim=1)  # [member, rows, parameters]
        for evaluation, posterior in zip(evaluations, whole, strict=True):
            evaluation.__dict__.setdefault("posterior", {})[name] = posterior
    share_results(evaluations)


def share_results(evaluations: Sequence[Evaluation]) -> None:
    """Let models on the same rows compute once what does not depend on the model."""
    for evaluation in evaluations[1:]:
        evaluation.shared = evaluations[0].shared


NEEDS_ON_REQUEST = {"peers", "weights", "strokes", "modalities"}
"""Needs that only a user can judge; metrics with one of them run only by name."""


def expand(names: Iterable[str]) -> list[str]:
    """Return the full names behind `mig` (its protocols), `disentanglement_lib` (a published protocol) and `full`.

    Full names stay as they are. Costly protocols, such as `dci/gbt`, and published ones are part of no other name.
    """
    chosen: dict[str, None] = {}
    for name in names:
        if isinstance(name, str) and "/" in name:
            matches = [name] if name in metric else []
        else:
            matches = [known for known in metric if _includes(name, known)] if isinstance(name, str) else []
        if not matches:
            raise unknown("metric", name, list_metric_names(metric))
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def _includes(name: str, known: str) -> bool:
    family, _, protocol = known.partition("/")
    if name == known or (name == protocol and protocol in PUBLISHED_PROTOCOLS):
        return True
    facts = metric[known].facts
    if facts.costly or protocol in PUBLISHED_PROTOCOLS:
        return False
    return name == family or (name == FULL and not NEEDS_ON_REQUEST & set(facts.needs))


def evaluate(evaluation: Evaluation, names: Iterable[str], **settings: Any) -> list[Score]:
    """Run metrics and time each of them; a setting goes to every metric that has it."""
    entries = [metric[name] for name in expand(names)]
    known = {key for entry in entries for key in entry.settings}
    for key in settings:
        if key not in known:
            raise unknown("setting", key, known, of="these metrics")
    scores: list[Score] = []
    for entry in entries:
        start = time.perf_counter()
        chosen = {key: value for key, value in settings.items() if key in entry.settings}
        result, notes = prepare(evaluation, entry.name, chosen)
        with blame_own_metric(entry.name):
            result = result() if isinstance(result, partial) else result
        scores += add_notes(check_own_scores(entry.name, result), notes, time.perf_counter() - start)
    return scores


def prepare(evaluation: Evaluation, name: str, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the scores of a metric, or the call that computes them if it is one of codes, and notes for them."""
    entry = metric[name]
    resolved = entry.resolve(settings)
    part = _rows_for(evaluation, entry, resolved)
    notes: dict[str, Any] = {"settings": resolved, "rows": part.which}
    if len(part) < len(evaluation):
        notes["unlabelled"] = len(evaluation) - len(part)
    check_needs(evaluation, entry.name, entry.facts.needs, resolved)
    with blame_own_metric(name):
        return entry.make(part, **resolved), notes


def add_notes(result: Score | Sequence[Score], notes: Mapping[str, Any], seconds: float) -> list[Score]:
    """Return scores as a list, with notes in their details and the seconds that they took."""
    scores = [result] if isinstance(result, Score) else result
    return [_fill_levels(replace(s, seconds=s.seconds or seconds, details={**s.details, **notes})) for s in scores]


def _fill_levels(score: Score) -> Score:
    """Return a score with the chance and ceiling that its details or its metric's facts state, if it has none."""
    name = f"{score.metric}/{score.protocol}"
    facts = metric[name].facts if name in metric else MetricFacts()
    levels: dict[str, float | None] = {}
    for key, measured, stated in (("chance", score.chance, facts.noise), ("ceiling", score.ceiling, facts.perfect)):
        known = stated.get(score.part) if isinstance(stated, Mapping) else stated
        found = score.details.get(key, known) if measured is None else measured
        levels[key] = float(found) if isinstance(found, (int, float)) else None
    return replace(score, chance=levels["chance"], ceiling=levels["ceiling"])


def _rows_for(evaluation: Evaluation, entry: Entry[Any, MetricFacts], settings: Mapping[str, Any]) -> Evaluation:
    """Return the rows that a metric looks at: those with labels, if it needs factors."""
    if "factors" not in entry.facts.needs:
        return evaluation
    check_needs(evaluation, entry.name, ("factors",), settings)
    names = evaluation.dataset.factor_names
    if "factor" in entry.settings and names:  # a metric of one factor, by default the first
        return evaluation.labelled([settings.get("factor") or names[0]])
    return evaluation.labelled(settings.get("factors"))
