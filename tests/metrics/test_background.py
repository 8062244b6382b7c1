"""Scores that are computed aside are those that are computed in turn, and factors have to be there."""

import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.evaluations import fixed_evaluation, full_grid
from tests.support.messages import naming
from unbraid.errors import DataError, UsageError
from unbraid.metrics import Evaluation, background, evaluate, metric
from unbraid.metrics.background import schedule_metrics
from unbraid.metrics.base import CodeTable, prepare
from unbraid.threads import one_thread, some_threads

ASKED = {
    "dci/random-forest": {"train": 60, "test": 40},
    "sap/linear-svm": {},
    "irs/quantile": {},
    "downstream/random-forest": {"labels": (20, 40), "test": 40},
    "mig/histogram-mean": {},
}
ASIDE = ["mig/histogram-mean", "sap/linear-svm", "downstream/random-forest", "dci/random-forest"]

forks = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def evaluation(**settings):
    grid = full_grid((4, 5, 6))
    noise = np.random.default_rng(0).normal(size=grid.shape)
    return fixed_evaluation(grid + 0.3 * noise, np.full(grid.shape, 0.1), grid, **settings)


def noises(shape, count):
    return [np.random.default_rng(seed).normal(size=shape) for seed in range(count)]


def untimed(scores):
    return [replace(score, seconds=0.0) for score in scores]


def measure_all(schedule):
    return {name: untimed(schedule.measure(name)) for name in schedule.order}


def in_turn():
    return {name: untimed(evaluate(evaluation(), [name], **own)) for name, own in ASKED.items()}


@forks
@pytest.mark.parametrize("threads", [1, 3])
def test_both_ways_give_the_same_scores_and_the_slowest_come_last(threads):
    with some_threads(threads), schedule_metrics([(evaluation(), ASKED)], background=True) as (schedule,):
        assert schedule.order == ["irs/quantile", *ASIDE]
        assert measure_all(schedule) == in_turn()


@forks
def test_models_that_are_scored_together_share_the_processes(monkeypatch):
    """Quick scores of many models start processes, too, and each model gets its own."""
    crews, make = [], background._Crew
    monkeypatch.setattr(background, "_Crew", lambda *own: crews.append(make(*own)) or crews[-1])
    grid = full_grid((4, 5, 6))
    models = [fixed_evaluation(grid + spread, np.full(grid.shape, 0.1), grid) for spread in noises(grid.shape, 6)]
    asked = {"mig/histogram-mean": {}, "irs/quantile": {}}
    with some_threads(3), schedule_metrics([(model, asked) for model in models]) as schedules:
        assert [schedule.order for schedule in schedules] == [["irs/quantile", "mig/histogram-mean"]] * 6
        made = [measure_all(schedule) for schedule in schedules]
    assert made == [{name: untimed(evaluate(model, [name])) for name in asked} for model in models]
    assert len({scores["mig/histogram-mean"][0].value for scores in made}) == 6
    assert len(crews) == 1


@forks
def test_what_nobody_waits_for_ends_with_the_block(monkeypatch, capfd):
    crews, make = [], background._Crew
    monkeypatch.setattr(background, "_Crew", lambda *own: crews.append(make(*own)) or crews[-1])
    slow = {"dci/gbt": {"train": 60, "test": 40}}
    with some_threads(3), schedule_metrics([(evaluation(), slow)] * 50, background=True):
        processes = list(crews[0].pipes.values())
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)
    assert len(crews[0].found) <= 2
    assert "Traceback" not in capfd.readouterr().err


@forks
def test_a_score_that_failed_here_waits_for_no_process(monkeypatch):
    """Its second try, after memory was freed, comes at once."""
    crew = background._Crew([partial(time.sleep, 30), partial(int)], 1)
    assert crew.collect(1) is None  # the process is at the first job, so this one is left to the first process
    start = time.perf_counter()
    assert crew.collect(1) is None
    assert time.perf_counter() - start < 5
    crew.dismiss()


@forks
def test_all_that_processes_have_sent_is_there_at_once():
    crew = background._Crew([partial(int), partial(float), partial(str)], 1)
    (process,) = crew.pipes.values()
    process.join(20)
    assert crew.count_busy() == 0
    assert sorted(crew.found) == [0, 1, 2]
    crew.dismiss()


def test_models_that_do_not_fit_in_memory_together_are_measured_one_after_the_other(monkeypatch):
    models = [evaluation() for _ in range(3)]
    real = background.prepare

    def fill(model, name, settings):
        if model is not models[0]:
            raise MemoryError("full")
        return real(model, name, settings)

    monkeypatch.setattr(background, "prepare", fill)
    asked = {"sap/linear-svm": {}, "mig/histogram-mean": {}}
    with some_threads(2), schedule_metrics([(model, asked) for model in models], background=True) as schedules:
        made = [measure_all(schedule) for schedule in schedules]
    assert made == [{name: untimed(evaluate(evaluation(), [name])) for name in asked}] * 3


def test_one_thread_computes_all_in_turn(monkeypatch):
    monkeypatch.setattr("unbraid.metrics.background._Crew", lambda *_: pytest.fail("something was started"))
    with one_thread(), schedule_metrics([(evaluation(), ASKED)]) as (schedule,):
        assert schedule.order == list(ASKED)
        measured = schedule.measure("mig/histogram-mean")
        assert untimed(measured) == untimed(evaluate(evaluation(), ["mig/histogram-mean"]))


def test_quick_scores_start_no_process(monkeypatch):
    monkeypatch.setattr("unbraid.metrics.background._Crew", lambda *_: pytest.fail("something was started"))
    quick = {"mig/histogram-mean": {}, "irs/quantile": {}}
    with some_threads(2), schedule_metrics([(evaluation(), quick)]) as (schedule,):
        assert schedule.order == ["mig/histogram-mean", "irs/quantile"]


def test_what_is_refused_aside_is_refused_where_it_is_asked_for():
    asked = {**ASKED, "dci/random-forest": {"factors": ("colour",)}, "sap/linear-svm": {"continuous": ("sound",)}}
    with schedule_metrics([(evaluation(), asked)], background=True) as (schedule,):
        assert schedule.measure("downstream/random-forest")
        for name, wrong in (("dci/random-forest", "colour"), ("sap/linear-svm", "sound")):
            with pytest.raises(UsageError, match=wrong):
                schedule.measure(name)


@forks
def test_without_other_processes_all_is_computed_here_and_it_is_said(monkeypatch):
    def refuse(*_):
        raise OSError("no more processes")

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", refuse)
    with (
        pytest.warns(UserWarning, match="no more proc"),
        schedule_metrics([(evaluation(), ASKED)], background=True) as (schedule,),
    ):
        assert measure_all(schedule) == in_turn()


@forks
def test_the_scores_of_a_process_that_dies_are_computed_here(monkeypatch):
    monkeypatch.setattr("unbraid.metrics.background.set_python_threads", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with schedule_metrics([(evaluation(), ASKED)], background=True) as (schedule,):
        assert measure_all(schedule) == in_turn()


def test_scores_that_may_run_aside_are_calls_on_codes_that_no_gpu_holds():
    for name in (name for name in metric if metric[name].facts.core_seconds):
        job, _ = prepare(evaluation(), name, {})
        assert isinstance(job.args[0], CodeTable)


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
