"""What a metric gets to see of a model, and how metrics are chosen, run and timed."""

import inspect
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from unbraid import noise
from unbraid.data.factors import FactorDataset
from unbraid.errors import DataError, UsageError, unknown
from unbraid.latents import Space
from unbraid.metrics.arrays import chosen_factors, plain
from unbraid.metrics.needs import check_needs
from unbraid.metrics.score import LOCATELLO as LOCATELLO
from unbraid.metrics.score import RANDOM, MetricFacts, Score, metric
from unbraid.metrics.score import metric_protocol as metric_protocol
from unbraid.models import Model
from unbraid.networks.stackable_batchnorm import stackable
from unbraid.progress import progress
from unbraid.registry import Entry

Made = TypeVar("Made")


class Sheet(NamedTuple):
    """What most metrics look at: codes [rows, latents], factor values [rows, factors], the columns' names, a seed."""

    codes: Tensor
    factors: Tensor
    names: list[str]
    latents: list[str]
    seed: int

    def score(self, function: Callable[..., Made], **settings: Any) -> Made:
        """Return the scores that a function on arrays gives this sheet."""
        return self._bound(function, self.codes, self.factors, settings)()

    def work(self, function: Callable[..., Made], **settings: Any) -> partial[Made]:
        """Return the call that `score` makes, with arrays in the processor's memory: any process can make it."""
        return self._bound(function, plain(self.codes), plain(self.factors), settings)

    def _bound(self, function: Callable[..., Made], codes: Any, factors: Any, settings: Any) -> partial[Made]:
        """Names and seed go to a function that takes them."""
        known, own = inspect.signature(function).parameters, ("names", "latents", "seed")
        named = {key: getattr(self, key) for key in own if key in known}
        return partial(function, codes, factors, **named, **settings)


class Evaluation:
    """A model on data: a row is encoded when it is first asked for, once, and all metrics share the codes.

    `rows` restricts it to a held-out split; None means the whole data set. Then "all rows", "q(z)" and "the population"
    mean these rows, too: a score never looks beyond them. A score of factors only looks at rows that have a label of
    all of them, and says how many have not (`unlabelled`). `peers` are other models on the same rows, for scores that
    compare models with each other.
    """

    def __init__(
        self, model: Model, dataset: FactorDataset, rows: Tensor | None = None, seed: int = 0, batch: int = 4096
    ) -> None:
        self.model = model.eval()
        self.dataset = dataset
        self.rows = torch.arange(len(dataset), device=dataset.device) if rows is None else rows.to(dataset.device)
        self.held_out = rows is not None
        self.which = "held out" if self.held_out else "all"
        self.seed = seed
        self.batch = batch
        self.trained_on: int | None = None  # rows that training saw, where that is known
        self.peers: tuple[Evaluation, ...] = ()
        self._made: dict[Hashable, Any] = {}
        self._whole: tuple[Evaluation, Tensor] | None = None  # of which this is a part, and its positions there

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def _every(self) -> Tensor:
        return torch.arange(len(self), device=self.rows.device)

    @property
    def space(self) -> Space:
        """The model's latent space."""
        return self.model.space

    @property
    def code_names(self) -> list[str]:
        """Names of a code's coordinates: `z0`, `z1`, …, or the block's own name where it has only one."""
        blocks = self.space.blocks.items()
        return [name if b.width == 1 else f"{name}{i}" for name, b in blocks for i in range(b.width)]

    @cached_property
    def posterior(self) -> dict[str, Tensor]:
        """Posterior parameters [rows, parameters] by block."""
        return self.posterior_at(self._every)

    @cached_property
    def means(self) -> Tensor:
        """Deterministic codes [rows, width]."""
        return self.space.center(self.posterior)

    @cached_property
    def samples(self) -> Tensor:
        """One posterior sample per row [rows, width], fixed by the evaluation's seed."""
        return self.samples_at(self._every)

    def posterior_at(self, positions: Tensor) -> dict[str, Tensor]:
        """Posterior parameters [*positions, parameters] by block; only rows never asked for before are encoded."""
        if "posterior" in self.__dict__:
            return {name: whole[positions] for name, whole in self.posterior.items()}
        if self._whole is not None:
            return self._whole[0].posterior_at(self._whole[1][positions])
        known, whole = self.once("encoded", lambda: (torch.zeros(len(self), dtype=torch.bool), {}))
        wanted = torch.zeros(len(self), dtype=torch.bool)
        wanted[positions.flatten().cpu()] = True
        missing = (wanted & ~known).nonzero().squeeze(-1).to(self.rows.device)
        with torch.no_grad(), progress("encoding", len(missing)) as bar:
            for chunk in missing.split(self.batch) if len(missing) else ():
                for name, part in self.model.encode(self.dataset.inputs(self.rows[chunk])).items():
                    if name not in whole:
                        whole[name] = part.new_zeros(len(self), *part.shape[1:])
                    whole[name][chunk] = part
                bar.advance(len(chunk))
        known |= wanted
        return {name: part[positions] for name, part in whole.items()}

    def means_at(self, positions: Tensor) -> Tensor:
        """Deterministic codes [*positions, width]."""
        return self.space.center(self.posterior_at(positions))

    def samples_at(self, positions: Tensor) -> Tensor:
        """Rows of `samples`, whichever else are asked for."""
        return self.space.join(self.values_at(positions))

    def values_at(self, positions: Tensor) -> dict[str, Tensor]:
        """The draws behind `samples`, by block: what densities are of, and cannot always be had back from a code."""
        seeds = noise.seed_tensor(self.seed, device=self.dataset.device)
        drawn = self.once("noise", lambda: noise.draw(self.space.needs(len(self)), seeds, step=0))
        own = {name: drawn[name][0][positions] for name in self.space.blocks}
        return self.space.sample(self.posterior_at(positions), own)

    def sheet(
        self, count: int | None, factors: Sequence[str] | None = None, codes: Literal["mean", "sampled"] = "mean"
    ) -> Sheet:
        """Codes and factors of `count` random rows (all if there are fewer, or for None, then in order)."""
        every = count is None or count >= len(self)
        positions = self._every if every else self.choose(count)
        values, names = self.chosen_factors(factors)
        found = self.means_at(positions) if codes == "mean" else self.samples_at(positions)
        return Sheet(found, values[positions], names, self.code_names, self.seed)

    @cached_property
    def factors(self) -> Tensor:
        """Factor values [rows, factors]."""
        self.check_factors()
        return self.dataset.values_of(self.rows)

    def check_factors(self) -> None:
        """Refuse data without labels."""
        if not self.dataset.factors:
            raise DataError(f"{self.dataset.name} has no factor labels, so this score cannot be computed on it.")

    def chosen_factors(self, wanted: Sequence[str] | None) -> tuple[Tensor, list[str]]:
        """Values [rows, chosen] and names of the wanted factors, in the data set's order; None means all."""
        values, names = self.factors, self.dataset.factor_names
        columns = chosen_factors(names, wanted)
        if bool((values[:, columns] < 0).any()):
            raise DataError(f"Some rows of {self.dataset.name} lack a label; score evaluation.labelled(factors).")
        return values[:, columns], [names[k] for k in columns]

    def labelled(self, wanted: Sequence[str] | None = None) -> "Evaluation":
        """The same model on the rows that have a label of all wanted factors (None means all): itself, if all have."""
        columns = chosen_factors(self.dataset.factor_names, wanted)
        if self.dataset.is_grid:
            return self
        whole = self.dataset.has_labels(self.rows, columns)
        return self if bool(whole.all()) else self.once(("labelled", *columns), lambda: self._part(whole, columns))

    def _part(self, whole: Tensor, columns: list[int]) -> "Evaluation":
        if int(whole.sum()) < 2:
            names = ", ".join(self.dataset.factor_names[k] for k in columns)
            raise DataError(
                f"{int(whole.sum())} of {len(self):,} rows have a label of all of {names}; name others with factors=…."
            )
        made = Evaluation(self.model, self.dataset, self.rows[whole], self.seed, self.batch)
        made._whole = self, whole.nonzero().squeeze(-1)
        made.held_out, made.peers = self.held_out, self.peers
        made.which = f"{len(made):,} labelled rows of {self.which}"
        return made

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns, made at the first call with this key: several scores may come from one computation."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def some(self, count: int) -> "Evaluation":
        """The same model on `count` of these rows, drawn at random; they are then all that a score looks at."""
        if count < 2:
            raise UsageError(f"A score needs at least 2 rows, not {count}.")
        made = Evaluation(self.model, self.dataset, self.rows[self.choose(count)], self.seed, self.batch)
        made.held_out, made.which = self.held_out, f"{min(count, len(self)):,} {RANDOM} of {self.which}"
        return made

    def forget(self) -> None:
        """Give up everything computed so far, for its memory; it is made again when somebody asks for it."""
        self._made.clear()
        for name in [name for name, kind in vars(type(self)).items() if isinstance(kind, cached_property)]:
            self.__dict__.pop(name, None)

    def choose(self, count: int) -> Tensor:
        """Positions of `count` different rows in random order (all rows if there are fewer)."""
        seeds = noise.seed_tensor(self.seed, device=self.dataset.device)
        return noise.permutation(seeds, 0, len(self))[0, :count]


def encode_together(evaluations: Sequence[Evaluation]) -> None:
    """Encode the rows of models of one structure, on the same rows, in one stacked pass instead of one pass each."""
    first = evaluations[0]
    parts: list[dict[str, Tensor]] = []
    codings = [stackable(_Coding(evaluation.model)) for evaluation in evaluations]
    state = stack_module_state(codings)  # type: ignore[arg-type]
    encode = vmap(lambda state, x: functional_call(codings[0], state, (x,)), in_dims=(0, None))
    batch = max(1, first.batch // len(evaluations)) if first.dataset.device.type == "cpu" else first.batch
    with torch.no_grad(), progress("encoding", len(first)) as bar:
        for chunk in first.rows.split(batch):
            parts.append(encode(state, first.dataset.inputs(chunk)))
            bar.advance(len(chunk))
    for name in first.space.blocks:
        whole = torch.cat([part[name] for part in parts], dim=1)  # [member, rows, parameters]
        for evaluation, own in zip(evaluations, whole, strict=True):
            evaluation.__dict__.setdefault("posterior", {})[name] = own


class _Coding(nn.Module):
    """A model whose forward is its encoder."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> dict[str, Tensor]:
        return self.model.encode(x)


COMPAT = ("disentanglement_lib", "chen2018")
"""Protocols that repeat a published one to the letter; they are measured when asked for by name."""

ASKED = {"peers", "weights", "strokes", "modalities"}
"""What only a user knows of: metrics that need it are measured when asked for by name."""

FULL = "full"
"""Suite of every metric that one model and its data allow, less costly ones and repeated protocols."""


def expand(names: Iterable[str]) -> list[str]:
    """Full names of what is meant by `mig` (its protocols), `disentanglement_lib` (a published protocol) and `full`.

    Full names stay as they are. Costly protocols, as `dci/gbt`, and published ones are part of no other name.
    """
    chosen: dict[str, None] = {}
    for name in names:
        matches = [known for known in metric if _means(name, known)]
        if not matches:
            families = {known.partition("/")[0] for known in metric}
            raise unknown("metric", name, {*metric, *families, *COMPAT, FULL})
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def _means(name: str, known: str) -> bool:
    family, _, protocol = known.partition("/")
    if name in (known, protocol) and (name == known or protocol in COMPAT):
        return True
    facts = metric[known].facts
    usual = protocol not in COMPAT and not facts.costly
    if name == FULL:
        return usual and not ASKED & set(facts.needs)
    return usual and name == family


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
        given = {key: value for key, value in settings.items() if key in entry.settings}
        made, notes = prepare(evaluation, entry.name, given)
        made = made() if isinstance(made, partial) else made
        scores += with_notes(made, notes, time.perf_counter() - start)
    return scores


def prepare(evaluation: Evaluation, name: str, settings: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the scores of one metric, or the work that makes them (of a `processor` metric), and notes for them."""
    entry = metric[name]
    how = entry.resolve(settings)
    seen = _seen(evaluation, entry, how)
    notes: dict[str, Any] = {"settings": how, "rows": seen.which}
    if len(seen) < len(evaluation):
        notes["unlabelled"] = len(evaluation) - len(seen)
    check_needs(evaluation, entry.name, entry.facts.needs, how)
    return entry.make(seen, **how), notes


def with_notes(made: Score | Sequence[Score], notes: Mapping[str, Any], seconds: float) -> list[Score]:
    """Return scores as a list, with notes in their details and the time that they took."""
    scores = [made] if isinstance(made, Score) else made
    return [replace(s, seconds=s.seconds or seconds, details={**s.details, **notes}) for s in scores]


def _seen(evaluation: Evaluation, entry: Entry[Any, MetricFacts], settings: Mapping[str, Any]) -> Evaluation:
    """The rows that a metric looks at: those with labels, if it looks at factors, whose names must be known."""
    if "factors" not in entry.facts.needs:
        return evaluation
    check_needs(evaluation, entry.name, ("factors",), settings)
    names = evaluation.dataset.factor_names
    if "factor" in entry.settings and names:  # one of them, the first where none is named
        return evaluation.labelled([settings.get("factor") or names[0]])
    return evaluation.labelled(settings.get("factors"))
