"""A scikit-learn estimator: codes of a table or of images, for pipelines, grid searches and downstream models.

>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> from unbraid.sklearn import Disentangler
>>> model = make_pipeline(Disentangler(n_components=4), LogisticRegression())
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]

from unbraid.api import train
from unbraid.data import FactorDataset, from_array
from unbraid.errors import UnbraidError, UsageError
from unbraid.metrics.base import Evaluation, metric
from unbraid.metrics.needs import check_needs
from unbraid.run import Run
from unbraid.store import RunFolder

ELBOS = ("elbo/closed-form", "elbo/sampled")
FILES = ("config.yaml", "data.json", "environment.json", "history.jsonl", "model.safetensors", "status.json")
"""Files of a run that a pickled estimator contains: text and weights."""


HIDDEN = (64, 64)
"""Units of the networks of a table."""


class Disentangler(TransformerMixin, BaseEstimator):
    """Codes that a variational autoencoder of this library learns from rows of features, or from images.

    `fit` trains a recipe (`unbraid.train`); what is None follows from the data. `transform` returns codes [n, latents],
    `inverse_transform` the expected observations of codes, and `score` the evidence lower bound of rows in nats per
    row, higher being better; it is a bound on log p(x) of the features as they were given, also if they are
    standardised.

    Parameters
    ----------
    recipe : name of an objective (`unbraid list objectives`). The default is `beta-vae`, with a beta of 4: it has one
        setting to search over, and estimates nothing but the terms of the bound, so that few rows and small batches do
        not bias it. `beta-tcvae`, which `unbraid advise` names, weighs the total correlation alone, but estimates
        log q(z) from each batch, which is biased if batches are small.
    n_components : number of latents; by default 10, or the number of features if they are fewer.
    beta, steps, batch, lr : settings of recipe and training.
    standardise : whether features [n, d] get mean 0 and variance 1 first; images never do.
    settings : any other settings, such as `{"network": "mlp", "encoder_hidden": (32,)}`.
    random_state : seed of weights, batches and noise; equal seeds give equal codes on a CPU.
    device : `cpu`, `cuda`, `mps` or `auto`.
    root : folder that keeps the runs; by default a temporary one, which disappears with the estimator. In a folder of
        yours, a second fit of the same data and settings finds the finished run.
    verbose : whether the chosen settings and the progress of training are printed.

    Attributes
    ----------
    run_ : the `unbraid.Run`, for traversals, scores, reports and exports.
    mean_, scale_ : what features are standardised by; None if they are not.
    n_features_in_, feature_names_in_ : features seen during fit.
    """

    def __init__(
        self,
        recipe: str = "beta-vae",
        *,
        n_components: int | None = None,
        beta: float | None = None,
        steps: int | None = None,
        batch: int | None = None,
        lr: float | None = None,
        standardise: bool = True,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str = "cpu",
        root: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.n_components = n_components
        self.beta = beta
        self.steps = steps
        self.batch = batch
        self.lr = lr
        self.standardise = standardise
        self.settings = settings
        self.random_state = random_state
        self.device = device
        self.root = root
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "Disentangler":
        """Train on rows of features [n, d], or on images [n, h, w, c], [n, c, h, w] or [n, h, w]; y is ignored."""
        X = self._validate(X, reset=True, ensure_min_samples=2)
        table = X.ndim == 2
        self.mean_ = X.mean(0, dtype=np.float64) if table and self.standardise else None
        self.scale_ = _positive(X.std(0, dtype=np.float64)) if table and self.standardise else None
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31)
        self._folder = tempfile.TemporaryDirectory(prefix="unbraid-") if self.root is None else None
        root = Path(self.root or self._folder.name)  # pyrefly: ignore[missing-attribute]
        with nullcontext() if self.verbose else _quiet():
            self.run_ = train(
                self.recipe,
                data=self._wrap(X),
                seed=int(seed),
                device=self.device,
                root=root,
                **self._settings(table),
            )
        return self

    def _settings(self, table: bool) -> dict[str, Any]:
        """Return the settings of `unbraid.train`; a table has small networks unless the user chooses some."""
        named = {"z": self.n_components, "beta": self.beta, "steps": self.steps, "batch": self.batch, "lr": self.lr}
        given, others = {key: value for key, value in named.items() if value is not None}, dict(self.settings or {})
        if twice := given.keys() & others.keys():
            raise UsageError(f"{min(twice)} is given twice: as a parameter and in settings.")
        if table and not any(key.partition("_")[0] in ("network", "encoder", "decoder") for key in others):
            others |= {"network": "mlp", "encoder_hidden": HIDDEN, "decoder_hidden": HIDDEN}
        return given | others

    def transform(self, X: Any) -> Any:
        """Return the codes [n, latents] of rows, an array unless `set_output` asks for a data frame."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        with nullcontext() if self.verbose else _quiet():
            return self.run_.encode(self._wrap(X)).cpu().numpy().astype(_float_of(X), copy=False)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Return the expected observations of codes [n, latents]: features [n, d], or images [n, c, h, w]."""
        check_is_fitted(self)
        codes = np.asarray(X)
        observed = self.run_.decode(codes).cpu().numpy().astype(_float_of(codes))
        return observed if self.scale_ is None else (observed * self.scale_ + self.mean_).astype(observed.dtype)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean evidence lower bound of rows in nats, of at most 10,000 of them; y is ignored."""
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        evaluation = Evaluation(self.run_.model, self._wrap(X).to(self.run_.device))
        entry = metric[next(name for name in ELBOS if name == ELBOS[-1] or _applies(name, evaluation))]
        with nullcontext() if self.verbose else _quiet():
            bound = entry.make(evaluation, **entry.resolve({})).value
        return bound if self.scale_ is None else bound - float(np.log(self.scale_).sum())

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the latents, as reports show them; input features have no influence."""
        check_is_fitted(self)
        return np.asarray(self.run_.model.space.code_names, dtype=object)

    def _validate(self, X: Any, **options: Any) -> np.ndarray:
        kinds = [np.float64, np.float32, np.uint8, np.bool_] if getattr(X, "ndim", 2) > 2 else [np.float64, np.float32]
        return validate_data(self, X, dtype=kinds, allow_nd=True, **options)

    def _wrap(self, X: np.ndarray) -> FactorDataset:
        scaled = X if self.scale_ is None else (X - self.mean_) / self.scale_
        return from_array(scaled, name="X")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return the estimator with the files of its run, so that a copy needs neither this folder nor this machine."""
        state = dict(super().__getstate__())  # it may be the estimator's own
        run = state.pop("run_", None)
        state.pop("_folder", None)
        if run is not None:
            paths = [run.path / name for name in FILES]
            state["_files"] = (run.path.name, {path.name: path.read_bytes() for path in paths if path.exists()})
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        name, files = state.pop("_files", (None, {}))
        super().__setstate__(state)
        if name is not None:
            self._folder = tempfile.TemporaryDirectory(prefix="unbraid-")
            path = Path(self._folder.name) / name
            path.mkdir()
            for each, content in files.items():
                (path / each).write_bytes(content)
            self.run_ = Run(RunFolder.open(path))


def _applies(name: str, evaluation: Evaluation) -> bool:
    try:
        check_needs(evaluation, name, metric[name].facts.needs, {})
    except UnbraidError:
        return False
    return True


def _positive(deviations: np.ndarray) -> np.ndarray:
    """Return deviations, 1 for a constant feature."""
    return np.where(deviations > 0, deviations, 1.0)


def _float_of(array: np.ndarray) -> type:
    return np.float64 if array.dtype == np.float64 else np.float32


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from printing while an estimator works."""
    before = os.environ.get("UNBRAID_QUIET")
    os.environ["UNBRAID_QUIET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["UNBRAID_QUIET"]
        else:
            os.environ["UNBRAID_QUIET"] = before
