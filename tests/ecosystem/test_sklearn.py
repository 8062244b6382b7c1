"""The estimator, as scikit-learn checks and uses it."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from tests.support.messages import naming
from unbraid.errors import UnbraidError, UsageError
from unbraid.sklearn import Disentangler

TINY = {"encoder_hidden": (4,), "decoder_hidden": (4,)}
WIDER = {"encoder_hidden": (16,), "decoder_hidden": (16,), "likelihood_learned": True}
RANDOM = np.random.default_rng(0)

QUICK = ("check_fit2d_1sample", "check_transformer_general", "check_estimators_nan_inf", "check_dict_unchanged")
"""Checks that run every time; the slow test runs all of them except those below."""

EXCLUDED = {
    "check_array_api_input": "it skips itself unless SCIPY_ARRAY_API is set",
    "check_do_not_raise_errors_in_init_or_set_params": "the type checks refuse the wrong types that it passes",
}


def run_checks(chosen):
    for estimator, check in estimator_checks_generator(Disentangler(steps=2, settings=TINY)):
        if chosen(check.func.__name__):
            check(estimator)


def test_scikit_learn_accepts_it():
    run_checks(lambda name: name in QUICK)


@pytest.mark.slow
def test_scikit_learn_accepts_it_in_every_check():
    run_checks(lambda name: name not in EXCLUDED)


def line(count):
    """Rows near a line in five dimensions, far from 0, and their places on it."""
    place = RANDOM.normal(0, 1, (count, 1))
    return 50 + 9 * place @ np.array([[1, -1, 1, -1, 1]]) + 3 * RANDOM.normal(0, 1, (count, 5)), place[:, 0]


def test_one_latent_finds_the_line_and_the_bound_is_of_the_data_as_given():
    x, place = line(400)
    model = Disentangler("vae", n_components=1, steps=200, batch=100, lr=2e-2, settings=WIDER)
    codes = model.fit(x).transform(x)
    assert abs(np.corrcoef(codes[:, 0], place)[0, 1]) > 0.98
    assert np.abs(model.inverse_transform(codes) - x).mean() < 3  # the noise
    best = -0.5 * np.linalg.slogdet(2 * np.pi * np.e * np.cov(x.T))[1]  # mean log density of the fitted normal
    assert best - 0.3 < model.score(x) < best + 0.3
    assert model.get_feature_names_out().tolist() == model.run_.model.space.code_names
    pytest.importorskip("pandas")
    assert list(model.set_output(transform="pandas").transform(x).columns) == model.run_.model.space.code_names


def test_pipelines_and_searches_clone_it():
    x, place = line(60)
    model = make_pipeline(Disentangler(steps=2, settings=TINY), LogisticRegression())
    assert 0 <= model.fit(x, place > 0).score(x, place > 0) <= 1
    search = GridSearchCV(Disentangler(steps=2, settings=TINY), {"beta": [1.0, 4.0]}, cv=2).fit(x)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.run_.config.objective.settings["beta"] == search.best_params_["beta"]


def test_equal_seeds_give_equal_codes_and_copies_stand_alone(tmp_path):
    x, _ = line(40)
    first = Disentangler(steps=2, settings=TINY, random_state=3, root=tmp_path).fit(x)
    codes = first.transform(x)
    assert (clone(first).set_params(root=None).fit(x).transform(x) == codes).all()
    assert not (Disentangler(steps=2, settings=TINY, random_state=4).fit(x).transform(x) == codes).all()
    assert Disentangler(steps=2, settings=TINY, random_state=3, root=tmp_path).fit(x).run_.reused
    copied = pickle.loads(pickle.dumps(first))
    assert copied.run_.path.parent != tmp_path and (copied.transform(x) == codes).all()
    assert (first.transform(x) == codes).all()


def test_images_are_taken_as_they_are():
    images = RANDOM.integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    model = Disentangler(n_components=2, steps=2, settings={"network": "mlp", **TINY})
    assert model.fit(images).transform(images).shape == (20, 2)
    assert model.inverse_transform(np.zeros((3, 2))).shape == (3, 3, 6, 6)
    assert np.isfinite(model.score(images / 255.0))


def test_nothing_is_printed_unless_it_is_asked_for(capfd):
    x, _ = line(30)
    Disentangler(steps=2, settings=TINY).fit(x).score(x)
    assert capfd.readouterr() == ("", "")


def test_bad_settings_are_named():
    x, _ = line(30)
    with pytest.raises(UnbraidError, match=naming("objective", "beta-vea")):
        Disentangler("beta-vea").fit(x)
    with pytest.raises(UsageError, match=naming("beta", "twice")):
        Disentangler(beta=2.0, settings={"beta": 3.0}).fit(x)


def test_the_docstring_names_the_default_recipe_and_its_weight():
    run = Disentangler(steps=2, n_components=2).fit(RANDOM.standard_normal((30, 4))).run_
    assert f"The default is `{run.config.objective.name}`" in Disentangler.__doc__
    assert f"a beta of {run.config.objective.settings['beta']:.0f}" in Disentangler.__doc__
