"""A finished run: a folder on disk with its model and data."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unbraid import noise
from unbraid.completion import CompletedTable, complete_features, complete_modalities, read_modality_table, tabulate
from unbraid.config import Config
from unbraid.data.factors import FactorDataset
from unbraid.data.find import unreadable_of
from unbraid.data.given_rows import GivenRows, read_rows
from unbraid.data.splits import split
from unbraid.data.table_columns import TableColumn, columns_from_json, restore
from unbraid.data.table_files import is_frame
from unbraid.errors import DataError, RunError, UsageError
from unbraid.explore import AUTO, MAX_KB, ExploredRun, ExplorerPage, Precision, write_run_page
from unbraid.exports import export_model
from unbraid.hub import push_folder
from unbraid.memory import explain_out_of_memory
from unbraid.metrics.base import Evaluation, Score
from unbraid.metrics.comparison import Comparison, compare_evaluations
from unbraid.models import Model, as_multimodal, generation
from unbraid.registry import check_count, check_options
from unbraid.report import EXPLORER, Picture, run_card, translation, traversal, traverse, triples, write_report
from unbraid.scoring import (
    Job,
    Result,
    Subject,
    assign_settings,
    choose_compared_metrics,
    choose_default_metrics,
    describe_repeats,
    describe_skipped,
    score_subjects,
)
from unbraid.scoring_pool import need_processes, score_all
from unbraid.store import RunFolder
from unbraid.stored_model import check_same_data as check_same_data, load_dataset, load_model
from unbraid.tracking import Trackers, check_trackers
from unbraid.training.environment import choose_device
from unbraid.training.origins import check_origins

MAX_SAMPLES = 10**7
"""More samples at once are taken for a typing error."""


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
        self._passed_in = dataset
        self.device = dataset.device if dataset is not None else device or choose_device("auto")
        self.reused = False
        self._loaded_from: object = None
        self.notes: list[str] = check_origins(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of history.jsonl."""
        return self.folder.read_lines("history")

    @property
    def scores(self) -> list[Score]:
        """All scores of this run, oldest first."""
        return [Score.from_record(line) for line in self.folder.read_lines("scores")]

    @property
    def unchanged(self) -> dict[str, Any]:
        """The `max_change` of the first stage's codes and the number of `rows`, if this run refines another."""
        return {key: value for key, value in self.folder.read_json("parent").items() if key != "format"}

    @cached_property
    @explain_out_of_memory("Loading the data", "close other programs, or use a machine with more memory")
    def dataset(self) -> FactorDataset:
        dataset = load_dataset(self.folder, self.device) if self._passed_in is None else self._passed_in
        check_same_data(self.folder, dataset)
        return dataset

    @cached_property
    @explain_out_of_memory("The model", "close other programs, or use another --device")
    def model(self) -> Model:
        """The trained model, in evaluation mode."""
        self._loaded_from = self.folder.stamp()
        return load_model(self.folder, **self._modules).to(self.device).eval()

    @cached_property
    def evaluation(self) -> Evaluation:
        """The model with its held-out rows, or with all rows if none were held out."""
        parts = split(self.dataset, self.config.training.split)
        evaluation = Evaluation(self.model, self.dataset, parts.held_out, precision=self.config.training.precision)
        evaluation.trained_on = len(parts.train)
        if parts.rule == "train":
            evaluation.held_out, evaluation.which = False, "trained on"
        return evaluation

    def score(self, *names: str, rows: int | None = None, save: bool = True, **settings: Any) -> list[Score]:
        """Measure metrics, append each score to scores.jsonl as soon as it exists unless `save` is false, return them.

        A name is a metric (`mig`), one protocol of it (`mig/exact`), a published protocol (`disentanglement_lib`: every
        metric that has it) or `full`. Without names, the default metrics are measured. A metric that the data or the
        model do not allow raises an error if it was named in full; otherwise it is left out, and `notes` says why.
        `rows` scores that many random rows instead of all. A setting (`factors=("posX", "posY")`) goes to every metric
        that has it.
        """
        ((_, scores),) = score_runs([self], *names, rows=rows, save=save, **settings)
        return scores

    @property
    def _is_as_stored(self) -> bool:
        """True if another process finds the same model and data: none were passed in, and no model was loaded yet."""
        passed_in = [self._passed_in, *self._modules.values()]
        return "model" not in self.__dict__ and all(each is None for each in passed_in)

    def subject(self, rows: int | None = None) -> Subject:
        """Return this run as a subject of scoring, after checking that its files are unchanged."""
        if self.folder.stamp() != self._loaded_from:
            for cached in ("model", "evaluation"):
                self.__dict__.pop(cached, None)
        _ = self.model  # loading it checks the files, before data are loaded
        return Subject(self.folder, self.evaluation if rows is None else self.evaluation.subsample(rows))

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns of the table that this run was trained on; none for other data."""
        return columns_from_json(self.folder.read_json("data").get("columns", ()))

    def read(self, given: Any) -> GivenRows:
        """Return a folder, a file, a DataFrame or an array as this run sees it, with a name for each row.

        Unreadable pictures of a folder are left out if the run was trained with `data.unreadable=skip`.
        """
        return read_rows(given, self.model.shape, self.columns, unreadable_of(self.config.data))

    def encode(self, given: Any) -> Tensor:
        """Return the deterministic codes [n, width] of observations.

        They are an array or a data set, a folder of pictures, one picture or a list of them, a table (the path of a
        .csv or .parquet file, or a DataFrame) or a .npy file. A run on several modalities takes arrays of any of them
        by name, `{"m1": images}`, or a table with a column for each.
        """
        if self.model.multimodal:
            return generation.encode_arrays(as_multimodal(self.model), self._observe(given), lambda: self.dataset)
        return Evaluation(self.model, self.read(given).data.to(self.device)).means

    def reconstruct(self, given: Any) -> Any:
        """Return the expected observations of the codes of observations, which may be given as to `encode`.

        For several modalities they are tensors by name, also of those that were not given.
        """
        return self.decode(self.encode(given))

    def complete(self, given: Any) -> CompletedTable:
        """Fill the missing cells of a table, the path of a .csv file or a DataFrame, and return the filled one.

        `.save("completed.csv")` writes it, and pictures to a folder beside it; `.filled` counts the filled cells.
        """
        if self.model.multimodal:
            table = read_modality_table(given, as_multimodal(self.model), self._classes)
            return complete_modalities(as_multimodal(self.model), table, self._classes)
        return complete_features(self.model, given, self.columns)

    def tabulate(self, values: Mapping[str, Tensor]) -> CompletedTable:
        """Return observations by modality, as `decode` and `sample` return them, as a table with a column for each."""
        return tabulate(values, self._classes)

    def _observe(self, given: Any) -> Any:
        """Return a table of several modalities as observations by name, and anything else as it is."""
        if not (is_frame(given) or isinstance(given, (str, Path))):
            return given
        return read_modality_table(given, as_multimodal(self.model), self._classes).observed

    @cached_property
    def _classes(self) -> dict[str, tuple[str, ...]]:
        """Names of the classes of each label."""
        stored = self.folder.read_json("data").get("classes")
        if stored is None:  # a run of an earlier version
            stored = {name: modality.classes for name, modality in self.dataset.modalities.items() if modality.classes}
        return {name: tuple(classes) for name, classes in stored.items()}

    def decode(self, codes: Any) -> Any:
        """Return the expected observations [n, *shape] of codes [n, width], by name if there are several modalities.

        Those of a table are in its units; a class has a probability.
        """
        width = self.model.space.width
        try:
            tensor = codes.to_dense() if isinstance(codes, Tensor) else torch.from_numpy(np.array(codes))
            tensor = tensor.to(self.device, torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:  # words, ragged lists, a tensor without data
            raise UsageError(f"Codes must be numbers of shape [n, {width}].") from error
        if tensor.ndim != 2 or tensor.shape[1] != width:
            raise UsageError(f"Codes must have shape [n, {width}], not {tuple(tensor.shape)}.")
        finite = tensor.isfinite().all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise DataError(f"Codes must be finite numbers, and row {row} (from 0) has NaN or infinite values.")
        with torch.no_grad():
            if self.model.multimodal:
                return as_multimodal(self.model).expected(tensor)
            return self._restore(self.model.likelihood.mean(self.model.decode(tensor)))

    def _restore(self, observations: Tensor) -> Tensor:
        return restore(self.columns, observations) if self.columns else observations

    def sample(self, count: int = 16, seed: int = 0) -> Any:
        """Return the expected observations [count, *shape] of codes drawn from the prior, by name if there are several.

        Those of a table are in its units.
        """
        count = check_count("count", count, most=MAX_SAMPLES)
        seed = check_count("seed", seed, least=-(2**63), most=2**63 - 1)
        if self.model.multimodal:
            return generation.generate(as_multimodal(self.model), count=count, seed=seed)
        model = self.model
        drawn = noise.draw(model.prior_needs(count), noise.seed_tensor(seed, device=self.device), step=0)
        with torch.no_grad():
            codes = model.prior_codes({name: tensor[0] for name, tensor in drawn.items()})
            return self._restore(model.likelihood.mean(model.decode(codes)))

    def traverse(self, *, row: int | None = None, **options: Any) -> Picture:
        """Draw a picture in which each row moves one latent variable; `.save("traversal.gif")` is an animation.

        The others stay as in the code of a `row` of the held-out data: -1 is the mean of the prior, None a random row.
        Other options: `latents`, the names of those to move (all, ordered by KL); `columns`, the number of values
        (9); `span`, values from -span to span (2.0); `by="quantiles"`, values within 95% of the codes instead.
        """
        if row is not None:
            options["base"] = row
        check_options(traverse, options)
        return traversal(self.evaluation, **options)

    def generate(self, given: Any = None, **options: Any) -> dict[str, Tensor]:
        """Return the expected value of every modality, given arrays of any by name (`unbraid.models.generation`)."""
        check_options(generation.generate, options)
        return generation.generate(as_multimodal(self.model), given, data=lambda: self.dataset, **options)

    def translate(self, source: str, target: str, **options: Any) -> Picture:
        """Draw the modality `target` with c of images of `source` and its own s (see `report.translation`)."""
        check_options(translation, options)
        return translation(self.evaluation, source, target, **options)

    def triples(self, **options: Any) -> Picture:
        """Draw observations x, the first stage's y and the refined x below each other."""
        check_options(triples, options)
        return triples(self.evaluation, **options)

    def report(self, output: str | Path | None = None, *, scores: Sequence[Score] | None = None) -> Path:
        """Write report.html, or `output`, from the newest stored score of each name, or from `scores`."""
        newest = {score.name: score for score in (self.scores if scores is None else scores)}
        path = None if output is None else Path(output)
        return write_report(self.folder, self.subject().evaluation, list(newest.values()), path)

    def explore(
        self,
        output: str | Path | None = None,
        *,
        weights: Precision = AUTO,
        max_kb: int = MAX_KB,
        open: bool = True,
    ) -> ExplorerPage:
        """Write one HTML file that holds this run's networks and runs them, and open it if there is a display.

        The file is `output`, or explore.html in the run's folder. `weights` is `float32`, `float16`, a number of bits,
        or `auto`: 16 bits, or fewer if the file would exceed `max_kb`. In a notebook the result is the page itself.
        """
        path = self.path / EXPLORER if output is None else Path(output)
        page = ExplorerPage(write_run_page(path, self.as_explored(), weights, max_kb))
        if open:
            page.open()
        return page

    def as_explored(self, settings: Mapping[str, Any] | None = None) -> ExploredRun:
        """Return what an explorer shows of this run; `settings` differ from those of other runs on its page."""
        newest = {score.name: score for score in self.scores}
        return ExploredRun(self.path.name, self.config, self.evaluation, list(newest.values()), settings or {})

    def export(self, path: str | Path | None = None, *, format: str = "onnx") -> dict[str, Path]:
        """Write encoder and decoder as `onnx` or `torch` (torch.export) files, and return them by part.

        They are in the folder `path`, or in the run's folder, and take any number of rows. The encoder takes images in
        [0, 1] and returns codes; the decoder returns expected observations.
        """
        folder = self.path if path is None else Path(path)
        return export_model(self.model, folder, format, self.model.space.code_names)

    def push(self, repository: str, *, private: bool = False) -> str:
        """Upload this run with a model card to `owner/name` on the Hugging Face hub, and return its address."""
        return push_folder(self.folder, repository, self.scores, private)

    def track(self, *names: str) -> None:
        """Send the history and the newest scores of this run to trackers (`tensorboard`, `wandb`, `mlflow`)."""
        check_trackers(names)
        trackers, step = Trackers(self.folder, names), 0
        for line in self.history:
            trackers.log(line)
            step = line["step"]
        trackers.log({"step": step, **{f"score/{score.name}": score.value for score in self.scores}})
        trackers.close()

    def _repr_html_(self) -> str:
        return run_card(self.folder)


def score_runs(
    runs: Sequence[Run], *names: str, rows: int | None = None, save: bool = True, **settings: Any
) -> Iterator[tuple[Run, list[Score]]]:
    """Score several runs on the same data, as `Run.score` does, and yield each with its new scores.

    Metrics that compare models with each other, such as `udr`, see all of them. A metric that fails raises an error
    after all others are measured and stored. Processes score many runs on a GPU side by side.
    """
    for run in runs if save else ():
        run.folder.check_writable("scores")
    contents = {run.folder.read_json("data").get("content") for run in runs}
    if len(contents) > 1:
        raise UsageError("Runs that are scored together must have been trained on the same data.")
    failures: list[str] = []
    if _need_processes(runs, names, settings):
        requests = (assign_settings(names, settings),)
        jobs = [Job(run.path, run.folder.root, requests, rows, frozenset(names), save=save) for run in runs]
        found = score_all(jobs, runs[0].device, lambda place: runs[place].subject(rows))
    else:
        found = _score_here(runs, names, rows, save, settings)
    with closing(found):  # an error here must end the processes there
        for run, result in zip(runs, found, strict=True):
            scores = [score for several in result.scores.values() for score in several]
            run.notes = [*describe_skipped(result.skipped), *describe_repeats(scores)]
            failures += result.failures
            if names and not result.scores and result.skipped and not failures:
                raise next(iter(result.skipped.values()))
            yield run, scores
    if failures:
        raise RunError(" ".join(failures))


def _score_here(
    runs: Sequence[Run], names: Sequence[str], rows: int | None, save: bool, settings: Mapping[str, Any]
) -> Generator[Result, None, None]:
    for run in runs[1:]:
        run.__dict__.setdefault("dataset", runs[0].dataset)  # equal data are in memory once
    subjects = [run.subject(rows) for run in runs]
    if any(not torch.equal(each.evaluation.rows, subjects[0].evaluation.rows) for each in subjects):
        raise UsageError("Runs that are scored together must have held out the same rows.")
    for subject in subjects:
        subject.evaluation.peers = tuple(each.evaluation for each in subjects if each is not subject)
    chosen = names or choose_default_metrics(run.model.space for run in runs)
    yield from score_subjects(subjects, chosen, settings, required=names, save=save)


def _need_processes(runs: Sequence[Run], names: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Return whether processes should score runs; these must be as stored, and have held out the same rows."""
    as_stored = all(run._is_as_stored for run in runs)
    same_rows = len({str(run.folder.config.training.split) for run in runs}) == 1
    if not (names and as_stored and same_rows):
        return False
    return need_processes(runs[0].device, [assign_settings(names, settings)] * len(runs))


def compare_runs(
    first: Run, second: Run, *names: str, rows: int | None = None, resamples: int = 20, **settings: Any
) -> list[Comparison]:
    """Return the differences second - first of scores on the same rows, each with a paired 95% interval over rows.

    Without names, MIG is compared if the data have factors, and the ELBO if both runs have the same likelihood. Nothing
    is stored. `rows` scores that many random rows; `resamples` is the number of random halves of the rows on which both
    runs are scored again.
    """
    contents = {run.folder.read_json("data").get("content") for run in (first, second)}
    if len(contents) > 1:
        raise UsageError("Runs that are compared must have been trained on the same data.")
    second.__dict__.setdefault("dataset", first.dataset)
    one, other = (run.subject(rows).evaluation for run in (first, second))
    chosen, first.notes = (list(names), []) if names else choose_compared_metrics(one, other)
    return compare_evaluations(one, other, chosen, resamples=resamples, **settings)
