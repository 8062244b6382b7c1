"""The library as people use it: train, load, and a `Run` to score, look at and work with."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unbraid import noise
from unbraid.config import Choice, Config
from unbraid.data import dataset as datasets
from unbraid.data import from_array, from_arrays, from_dataset
from unbraid.data import load as load_data
from unbraid.data.factors import FactorDataset
from unbraid.data.splits import split
from unbraid.errors import DataError, RunError, SettingError, UsageError, unknown
from unbraid.metrics.background import measuring
from unbraid.metrics.base import Evaluation, Score, expand, metric
from unbraid.models import CUSTOM, Model, as_multimodal, build, generation
from unbraid.report import Picture, translation, traversal, triples, write_report
from unbraid.store import RunFolder, folder_name, under
from unbraid.training import Cadence, choose_device, configure, refuse_unknown
from unbraid.training import train as fit
from unbraid.training.configure import dotted
from unbraid.training.distributed import World, joined
from unbraid.training.first_stage import bring, refuse_changed
from unbraid.training.loop import rehearse
from unbraid.training.modality_config import stored_layout

DEFAULT_SCORES = ("mig", "elbo", "reconstruction/nats", "kl", "mi", "tc/exact", "tc/stratified", "dimension-kl")
"""Scores of a run where none are named; of `elbo` and `kl` the protocol that its latents have."""

GIVEN = "given"
"""Name under which a config records data that were passed in; their content hash stands beside it."""

Data = str | Path | FactorDataset | np.ndarray | Tensor | torch.utils.data.Dataset | Mapping[str, Any]


def train(
    recipe: str,
    *,
    data: Data = "sprites",
    encoder: str | nn.Module | None = None,
    decoder: str | nn.Module | None = None,
    device: str = "auto",
    root: str | Path = "runs",
    name: str | None = None,
    resume: bool = True,
    fresh: bool = False,
    cadence: Cadence | None = None,
    **overrides: Any,
) -> "Run":
    """Train a recipe on data and return the finished run.

    `data` is a registered name, a folder of pictures, an array (images as bytes or floats, or feature vectors), a
    torch Dataset, a `FactorDataset`, or several modalities: a CSV file (`unbraid.data.from_csv`) or arrays by name
    (`unbraid.data.from_arrays`). Settings of a named data set, a folder or a file go by `data_KEY=…`. `encoder` and
    `decoder` may be registered names or modules of your own. Every other keyword is a setting of the recipe, its
    networks or the training (see `unbraid list objectives`). The run lives in `root / name`, by default named by a hash
    of its settings: a finished run of the same settings is returned as it is, an unfinished one is continued
    (`resume=False` refuses). With `fresh` a run of that name is thrown away, once all else is known to be right. Under
    torchrun all processes train this one run together and return it.
    """
    place = choose_device(device)
    settings = dotted(
        recipe, {**overrides, **{k: v for k, v in (("encoder", encoder), ("decoder", decoder)) if v is not None}}
    )
    refuse_unknown(recipe, settings)  # before minutes are spent on data
    choice, dataset = find_data(data, settings, place)
    return fitted(recipe, choice, dataset, settings, Path(root), name, resume, cadence, fresh=fresh)


def fitted(
    recipe: str,
    choice: Choice,
    dataset: FactorDataset,
    settings: dict[str, Any],
    root: Path,
    name: str | None,
    resume: bool,
    cadence: Cadence | None,
    parent: tuple[RunFolder, Mapping[str, Any]] | None = None,
    fresh: bool = False,
) -> "Run":
    """The finished run of a recipe, trained as far as it is not yet; `parent` is what it refines, and its section."""
    modules = {key: settings.pop(key) for key in ("encoder", "decoder") if isinstance(settings.get(key), nn.Module)}
    with joined(dataset.device) as world:
        world.equalise(tensor for module in modules.values() for tensor in module.state_dict().values())
        config = configure(recipe, choice, dataset, settings, **modules, parent=parent and parent[1])
        path = root / folder_name(name or config.run_id)
        folder = _folder(path, config, dataset, modules, world, fresh)
        if parent is not None and world.leads:
            bring(parent[0], folder)
        world.meet()
        reused = folder.finished
        if reused:
            _same_data(folder, dataset)
        else:
            if not resume and folder.checkpoints():
                raise UsageError(f"{folder.path} holds an unfinished run of these settings; continue it with --resume.")
            fit(folder, config, dataset, cadence, world=world, **modules)
        world.meet()
    run = Run(folder, dataset=dataset, **modules)
    run.reused = reused
    return run


def score_together(
    runs: Sequence["Run"], *names: str, rows: int | None = None, **settings: Any
) -> Iterator[tuple["Run", list[Score]]]:
    """Score several runs on the same data, one after the other, as `Run.score` does.

    Metrics that compare models with each other, as `udr`, see all of them.
    """
    contents = {run.folder.read_json("data").get("content") for run in runs}
    if len(contents) > 1:
        raise UsageError("Runs that are scored together must have been trained on the same data, and these were not.")
    for run in runs[1:]:
        run.__dict__.setdefault("dataset", runs[0].dataset)  # the same data need not be in memory once per run
    evaluations = [run._scored(rows) for run in runs]
    if any(not torch.equal(each.rows, evaluations[0].rows) for each in evaluations):
        raise UsageError("Runs that are scored together must have held out the same rows, and these did not.")
    for run, own in zip(runs, evaluations, strict=True):
        own.peers = tuple(other for other in evaluations if other is not own)
        yield run, run._measure(own, names, settings)


def load(
    path: str | Path,
    *,
    data: Data | None = None,
    encoder: nn.Module | None = None,
    decoder: nn.Module | None = None,
    device: str = "auto",
) -> "Run":
    """Open a finished run. `data`, `encoder` and `decoder` are needed only where the run was made with your own."""
    folder = RunFolder.open(path)
    place = choose_device(device)
    dataset = None if data is None else find_data(data, {}, place)[1]
    return Run(folder, dataset=dataset, encoder=encoder, decoder=decoder, device=place)


class Run:
    """A finished run: a folder on disk, its model and its data, each loaded when first needed."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        dataset: FactorDataset | None = None,
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.folder = folder
        self.config: Config = folder.config
        self._modules: dict[str, nn.Module | None] = {"encoder": encoder, "decoder": decoder}
        self._given = dataset
        self.device = dataset.device if dataset is not None else device or choose_device("auto")
        self.reused = False
        self.notes: list[str] = []

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def history(self) -> list[dict[str, Any]]:
        """One mapping per logging point."""
        return self.folder.lines("history")

    @property
    def scores(self) -> list[Score]:
        """Every score ever measured on this run, oldest first."""
        try:
            return [Score.from_record(line) for line in self.folder.lines("scores")]
        except TypeError as error:
            raise RunError(f"{self.path / 'scores.jsonl'} holds a line that is no score.") from error

    @property
    def unchanged(self) -> dict[str, Any]:
        """Of a run that refines another one: `max_change` of the other's codes on so many `rows`."""
        return {key: value for key, value in self.folder.read_json("parent").items() if key != "format"}

    @cached_property
    def dataset(self) -> FactorDataset:
        """The data that the run was trained on."""
        stored = self.config.data
        if self._given is None and stored.name != GIVEN:
            return _same_data(self.folder, load_data(stored.name, stored.settings, self.device))
        if self._given is None:
            raise RunError(
                f"{self.path} was trained on data that were passed in ({stored.settings['source']}, content "
                f"{stored.settings['content'][:12]}…); pass them again: unbraid.load(path, data=…)."
            )
        return _same_data(self.folder, self._given)

    @cached_property
    def model(self) -> Model:
        """The trained model, in evaluation mode."""
        for side, module in self._modules.items():
            if getattr(self.config, side).name == CUSTOM and module is None:
                wanted = getattr(self.config, side).settings["module"]
                raise RunError(
                    f"{self.path} was trained with your own {side} ({wanted}); pass it: unbraid.load(path, {side}=…)."
                )
        tensors = under("model.", self.folder.load_model())
        shape = self.folder.read_json("data").get("shape")
        if shape is None:
            raise RunError(f"{self.path} has no data.json that says which observations it takes.")
        model = build(self.config, stored_layout(shape), **self._modules)
        _load_state(model, tensors, self.folder.model_path)
        return model.to(self.device).eval()

    @cached_property
    def evaluation(self) -> Evaluation:
        """The model on its held-out rows, or on everything where nothing was held out."""
        parts = split(self.dataset, self.config.training.split)
        made = Evaluation(self.model, self.dataset, parts.held_out)
        made.trained_on = len(parts.train)
        return made

    def score(self, *names: str, rows: int | None = None, **settings: Any) -> list[Score]:
        """Measure, append each score to scores.jsonl as soon as it is there, return them.

        A name is a metric (`mig`), one protocol of it (`mig/exact`), a published protocol (`disentanglement_lib`: every
        metric that has it) or `full`. Without names: the default set. What these data or this model do not allow is an
        error if it was asked for by its full name, and otherwise left out; `notes` says what and why. `rows` scores
        that many random rows instead of all. A setting (`factors=("posX", "posY")`) goes to every metric that has it.
        """
        return self._measure(self._scored(rows), names, settings)

    def _scored(self, rows: int | None = None) -> Evaluation:
        """All rows or some, of a run whose files are those that it finished with: nothing is said of any others."""
        self.folder.refuse_changed()
        return self.evaluation if rows is None else self.evaluation.some(rows)

    def _default_scores(self) -> list[str]:
        bound = "closed-form" if self.model.space.closed_form else "sampled"
        return [f"{name}/{bound}" if name in ("elbo", "kl") else name for name in DEFAULT_SCORES]

    def _measure(self, evaluation: Evaluation, names: Sequence[str], settings: Mapping[str, Any]) -> list[Score]:
        made: dict[str, list[Score]] = {}
        left: dict[str, str] = {}
        chosen, refused = expand(names or self._default_scores()), None
        known = {key for name in chosen for key in metric[name].settings}
        for key in settings:
            if key not in known:
                raise unknown("setting", key, known, of="these metrics")
        asked = {name: {key: settings[key] for key in settings if key in metric[name].settings} for name in chosen}
        with measuring(evaluation, asked) as (order, measure):
            for name in order:
                try:
                    new = measure(name)
                except (DataError, UsageError) as error:
                    if name in names or (asked[name] and isinstance(error, SettingError)):
                        raise
                    refused = refused or error
                    left[name] = str(error)
                    continue
                for score in new:
                    self.folder.append("scores", score.as_record())
                made[name] = new
        self.notes = _left_out(left)
        if refused is not None and names and not made:
            raise refused
        return [score for name in chosen for score in made.get(name, [])]

    def encode(self, images: Any) -> Tensor:
        """Deterministic codes [n, width] of images given as the data were, or as an array.

        Of several modalities, any of them as arrays by name: `{"m1": images}`.
        """
        if self.model.multimodal:
            return generation.encode_arrays(as_multimodal(self.model), images, lambda: self.dataset)
        dataset = images if isinstance(images, FactorDataset) else from_array(images, name="images")
        if dataset.shape != self.model.shape:
            raise UsageError(f"This run takes observations of shape {self.model.shape}, not {dataset.shape}.")
        return Evaluation(self.model, dataset.to(self.device)).means

    def decode(self, codes: Any) -> Tensor:
        """Expected observations [n, *shape] of codes [n, width]."""
        tensor = torch.as_tensor(np.asarray(codes) if not isinstance(codes, Tensor) else codes)
        tensor = tensor.to(self.device, torch.float32)
        width = self.model.space.width
        if tensor.ndim != 2 or tensor.shape[1] != width:
            raise UsageError(f"Codes must have shape [n, {width}], not {tuple(tensor.shape)}.")
        with torch.no_grad():
            return self.model.likelihood.mean(self.model.decode(tensor))

    def sample(self, count: int = 16, seed: int = 0) -> Tensor:
        """Expected observations of codes drawn from the prior."""
        if count < 1:
            raise UsageError(f"At least 1 sample can be drawn, not {count}.")
        model = self.model
        drawn = noise.draw(model.prior_needs(count), noise.seed_tensor(seed, device=self.device), step=0)
        with torch.no_grad():
            codes = model.prior_codes({name: tensor[0] for name, tensor in drawn.items()})
            return model.likelihood.mean(model.decode(codes))

    def traverse(self, **options: Any) -> Picture:
        """A picture in which each row moves one latent variable alone."""
        return traversal(self.evaluation, **options)

    def generate(self, given: Any = None, **options: Any) -> dict[str, Tensor]:
        """Every modality, expected from any of them given as arrays by name (see `unbraid.models.generation`)."""
        return generation.generate(as_multimodal(self.model), given, data=lambda: self.dataset, **options)

    def translate(self, source: str, target: str, **options: Any) -> Picture:
        """A picture of the modality `target` with c of images of `source` and its own s (see `report.translation`)."""
        return translation(self.evaluation, source, target, **options)

    def triples(self, **options: Any) -> Picture:
        """A picture of observations x, the first stage's y and the refined x below each other, of a run in stages."""
        return triples(self.evaluation, **options)

    def report(self) -> Path:
        """Write report.html from the newest score of each name."""
        newest = {score.name: score for score in self.scores}
        return write_report(self.folder, self._scored(), list(newest.values()))


def find_data(data: Data, settings: dict[str, Any], device: torch.device) -> tuple[Choice, FactorDataset]:
    """Load or wrap what the user gave; settings under `data.` are taken out of `settings`."""
    own = {key[5:]: settings.pop(key) for key in list(settings) if key.startswith("data.")}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() in (".csv", ".tsv"):
        data, own = "paired", {"csv": str(data), **own}
    if isinstance(data, Path) or (isinstance(data, str) and data not in datasets and Path(data).is_dir()):
        data, own = "images", {"folder": str(data), **own}
    if isinstance(data, str):
        return Choice(data, datasets[data].resolve(own)), load_data(data, own, device)
    if own:
        raise UsageError(f"data.{next(iter(own))} is a setting of a named data set, but the data were passed in.")
    if isinstance(data, FactorDataset):
        wrapped = data
    elif isinstance(data, (np.ndarray, Tensor)):
        wrapped = from_array(data)
    elif isinstance(data, Mapping):
        wrapped = from_arrays(data)
    else:
        wrapped = from_dataset(data)
    facts = {"content": wrapped.content_hash(), "source": wrapped.source or wrapped.name}
    return Choice(GIVEN, facts), wrapped.to(device)


def _folder(
    path: Path, config: Config, dataset: FactorDataset, modules: Mapping[str, Any], world: World, fresh: bool
) -> RunFolder:
    """The run's folder; what cannot be trained is refused before it leaves one behind, or takes another's place."""
    with world.together():
        if not fresh:
            refuse_changed(path, config)
        if fresh or not (path / "config.yaml").exists():
            rehearse(config, dataset, world=world, **modules)
        if fresh and world.leads:
            RunFolder.discard(path)
        folder = RunFolder.create(path, config) if world.leads else RunFolder(path)
    world.refuse_difference(config.run_id, "The processes of this run have different settings or data.")
    return folder


def _same_data(folder: RunFolder, dataset: FactorDataset) -> FactorDataset:
    """The data, if they are those that the run was trained on."""
    content = folder.read_json("data").get("content")
    if content is not None and content != dataset.content_hash():
        raise RunError(f"{folder.path} was trained on other data than these: their content hashes differ.")
    return dataset


def _load_state(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise RunError(f"{path} does not fit the model of its config: {first}") from error


def _left_out(reasons: Mapping[str, str]) -> list[str]:
    """One note for all protocols of a metric that are left out for the same reason."""
    shared: dict[tuple[str, str], list[str]] = {}
    for name, reason in reasons.items():
        family = name.partition("/")[0]
        shared.setdefault((family, reason.replace(name, family)), []).append(name)
    told = []
    for (_, reason), names in shared.items():
        whole = reasons[names[0]] if len(names) == 1 else reason
        told.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} left out: {whole}")
    return told
