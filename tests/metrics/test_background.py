"""Scores that are computed aside are those that are computed in turn, and factors have to be there."""

from dataclasses import replace

import numpy as np
import pytest
from joblib import parallel_config

from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Evaluation, evaluate, metric
from unbraid.metrics.background import schedule_metrics

FORESTS = ["dci/random-forest", "downstream/random-forest"]
ASKED = {
    "dci/random-forest": {"train": 60, "test": 40},
    "sap/linear-svm": {},
    "downstream/random-forest": {"labels": (20, 40), "test": 40},
    "mig/histogram-mean": {},
}


def evaluation(**settings):
    grid = full_grid((4, 5, 6))
    noise = np.random.default_rng(0).normal(size=grid.shape)
    return fixed_evaluation(grid + 0.3 * noise, np.full(grid.shape, 0.1), grid, **settings)


def untimed(scores):
    return [replace(score, seconds=0.0) for score in scores]


def test_both_ways_give_the_same_scores_and_forests_come_last():
    in_turn = {name: untimed(evaluate(evaluation(), [name], **own)) for name, own in ASKED.items()}
    order, measure = schedule_metrics(evaluation(), ASKED, background=True)
    assert order == ["sap/linear-svm", "mig/histogram-mean", *FORESTS]
    assert {name: untimed(measure(name)) for name in order} == {name: in_turn[name] for name in order}


def test_without_a_gpu_nothing_is_computed_aside(monkeypatch):
    monkeypatch.setattr("unbraid.metrics.background._start", lambda *_: pytest.fail("something was started"))
    order, measure = schedule_metrics(evaluation(), ASKED)
    assert order == list(ASKED)
    assert untimed(measure("mig/histogram-mean")) == untimed(evaluate(evaluation(), ["mig/histogram-mean"]))


def test_what_is_refused_aside_is_refused_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("UNBRAID_QUIET", "1")  # which a job sets in its own process, here this one
    asked = {**ASKED, "dci/random-forest": {"factors": ("colour",)}}
    with parallel_config(backend="threading"):
        _, measure = schedule_metrics(evaluation(), asked, background=True)
        assert measure("downstream/random-forest")
        with pytest.raises(UsageError, match="colour"):  # before it has read anything
            measure("dci/random-forest")


def test_without_other_processes_all_is_computed_here_and_it_is_said(monkeypatch):
    def broken(work):
        raise OSError("no more processes")

    monkeypatch.setattr("unbraid.metrics.background._run_quietly", broken)
    in_turn = evaluate(evaluation(), ["dci/random-forest"], **ASKED["dci/random-forest"])
    with parallel_config(backend="threading"), pytest.warns(UserWarning, match="no more proc"):
        _, measure = schedule_metrics(evaluation(), ASKED, background=True)
        assert untimed(measure("dci/random-forest")) == untimed(in_turn)


def test_the_processor_s_scores_are_the_predictors_that_have_no_other_place():
    names = {name for name in metric if metric[name].facts.cpu_only}
    assert names == {"dci/gbt", *FORESTS}


def test_a_metric_states_needs_that_exist():
    with pytest.raises(UsageError, match="factors"):

        @metric("some/thing", needs=("factor",))
        def thing(evaluation):
            """Nothing."""


@pytest.mark.parametrize("name", [name for name in metric if "factors" in metric[name].facts.needs])
def test_data_without_factors_are_refused_by_every_score_of_factors(name):
    whole = evaluation()
    bare = Evaluation(whole.model, replace(whole.dataset, factors=(), table=None))
    with pytest.raises(DataError, match=naming(whole.dataset.name, "factor")):
        evaluate(bare, [name])
