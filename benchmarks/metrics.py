"""Scores against straightforward reference code and against disent's, interleaved, on the same 10,000 x 10 codes.

    python benchmarks/metrics.py                            # MIG, SAP, FactorVAE score; minutes
    python benchmarks/metrics.py --dci                      # DCI by every predictor; scikit-learn's takes many minutes
    python benchmarks/metrics.py --run runs/NAME            # the full suite of a trained run, score by score
    python benchmarks/metrics.py --sweep runs/SWEEP         # the full suite of all runs of a sweep, by the command line
    PYTHONPATH=… python benchmarks/metrics.py               # with disent 0.8 on the path, its versions take part

Six factors of 3, 6, 40, 32, 32 and 10 values; codes are a rotated, noisy copy of them. Both sides have the codes
already; FactorVAE's end-to-end rows include encoding: ours encodes each row of the pool once, the published protocol
encodes every batch again (timed on a few votes, and multiplied). A round measures every side once, and ratios are taken
inside a round. `--out FILE` writes JSON.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import facts, set_threads, stand_in_for_torchvision, write
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import mutual_info_score
from sklearn.svm import LinearSVC

from unbraid import metrics
from unbraid.config import Choice
from unbraid.data import FactorDataset, load as load_data
from unbraid.errors import UsageError
from unbraid.gpu_sharing import PROGRAM
from unbraid.metrics import Evaluation, evaluate, expand
from unbraid.metrics.background import schedule_metrics
from unbraid.open_run import load
from unbraid.training.configure import configure
from unbraid.training.prepare import prepare

SIZES = (3, 6, 40, 32, 32, 10)
ROWS, TEST, LATENTS, VOTES, BATCH = 10_000, 5_000, 10, (10_000, 5_000), 64

MIN_SECONDS_PER_SIDE = 0.2
"""A quick side is called repeatedly for this time."""

REFERENCE = "reference gbt, factor by factor"
PARTS = ("disentanglement", "completeness", "informativeness")

Side = Callable[[], float]
"""Computes a score from cached codes."""


def make_codes(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return codes [rows, 10] and factors [rows, 6]: standardised factors, slightly rotated, and noise."""
    rng, turn = np.random.default_rng(seed), np.random.default_rng(99)
    factors = np.stack([rng.integers(0, size, rows) for size in SIZES], axis=1)
    scaled = (factors - (np.array(SIZES) - 1) / 2) / np.sqrt((np.array(SIZES) ** 2 - 1) / 12)
    mixing = np.eye(len(SIZES), LATENTS) + 0.15 * turn.standard_normal((len(SIZES), LATENTS))
    return scaled @ mixing + 0.2 * rng.standard_normal((rows, LATENTS)), factors


def reference_mig(codes: np.ndarray, factors: np.ndarray) -> float:
    """Compute MIG by one histogram and one scikit-learn call per pair."""
    binned = [np.digitize(c, np.histogram(c, 20)[1][:-1]) for c in codes.T]
    information = np.array([[mutual_info_score(v, b) for v in factors.T] for b in binned])
    ordered = np.sort(information, axis=0)
    return float(np.mean((ordered[-1] - ordered[-2]) / [mutual_info_score(v, v) for v in factors.T]))


def reference_sap(codes: np.ndarray, factors: np.ndarray, codes_test: np.ndarray, factors_test: np.ndarray) -> float:
    """Compute SAP by one support vector machine per pair."""
    accuracy = np.zeros((codes.shape[1], factors.shape[1]))
    for j in range(codes.shape[1]):
        for k in range(factors.shape[1]):
            machine_ = LinearSVC(C=0.01, class_weight="balanced").fit(codes[:, [j]], factors[:, k])
            accuracy[j, k] = np.mean(machine_.predict(codes_test[:, [j]]) == factors_test[:, k])
    ordered = np.sort(accuracy, axis=0)
    return float(np.mean(ordered[-1] - ordered[-2]))


def reference_factorvae(codes: np.ndarray, factors: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> float:
    """Compute the FactorVAE score vote by vote; `encode` returns the codes of rows."""
    rng = np.random.default_rng(0)
    spread = codes.var(0, ddof=1)
    rows_of = [[np.flatnonzero(column == value) for value in range(column.max() + 1)] for column in factors.T]
    votes = np.zeros((2, codes.shape[1], factors.shape[1]), dtype=int)
    for part, count in enumerate(VOTES):
        for _ in range(count):
            k = rng.integers(factors.shape[1])
            rows = rng.choice(rows_of[k][factors[rng.integers(len(factors)), k]], BATCH)
            votes[part, np.argmin(encode(rows).var(0, ddof=1) / spread), k] += 1
    chosen = votes[0].argmax(1)
    return float(votes[1][np.arange(codes.shape[1]), chosen].sum() / votes[1].sum())


def disent_sides() -> dict[str, dict[str, Side]]:
    """Return disent's functions on the same codes, if it is installed."""
    try:
        import lightning  # noqa: F401 (looks for torchvision, and must not find the stand-in)

        stand_in_for_torchvision()
        from disent.dataset import DisentDataset
        from disent.dataset.data import GroundTruthData
        from disent.metrics import _mig, _sap, metric_factor_vae
    except ImportError as error:
        print(f"disent takes no part: {error}", file=sys.stderr)
        return {}
    codes, factors = make_codes(ROWS, 0)
    codes_test, factors_test = make_codes(TEST, 1)

    class Codes(GroundTruthData):
        """A data set whose observations are codes, so that nothing has to be encoded.

        They repeat and do not follow the grid's factors: this side is here for its time; its value says nothing.
        """

        name = "codes"
        factor_names = tuple(f"v{k}" for k in range(len(SIZES)))
        factor_sizes = SIZES
        img_shape = (1, 1, LATENTS)

        def _get_observation(self, idx: int) -> np.ndarray:
            return self._table[idx % ROWS].reshape(1, 1, LATENTS)

        _table = codes.astype(np.float32)

    data = DisentDataset(Codes())
    return {
        "mig": {"disent": lambda: _mig._compute_mig(codes.T, factors.T)["mig.discrete_score"]},
        "sap": {
            "disent": lambda: _sap._compute_sap(codes.T, factors.T, codes_test.T, factors_test.T, False)["sap.score"]
        },
        "factorvae": {
            "disent": lambda: metric_factor_vae(data, lambda x: torch.as_tensor(x).reshape(len(x), -1))[
                "factor_vae.eval_accuracy"
            ]
        },
    }


def sides() -> dict[str, dict[str, Side]]:
    """Return our function and the reference of each score."""
    codes, factors = make_codes(ROWS, 0)
    codes_test, factors_test = make_codes(TEST, 1)
    both, both_factors = np.concatenate([codes, codes_test]), np.concatenate([factors, factors_test])
    votes = {"train": VOTES[0], "test": VOTES[1], "batch": BATCH}
    return {
        "mig": {
            "unbraid": lambda: metrics.mig(codes, factors, resamples=0).value,
            "reference": lambda: reference_mig(codes, factors),
        },
        "sap": {
            "unbraid": lambda: metrics.sap(both, both_factors, train=ROWS, test=TEST, resamples=0).value,
            "reference": lambda: reference_sap(codes, factors, codes_test, factors_test),
        },
        "factorvae": {
            "unbraid": lambda: metrics.factorvae(codes, factors, resamples=0, **votes).value,
            "reference": lambda: reference_factorvae(codes, factors, lambda rows: codes[rows]),
        },
    }


def serve_disent(connection: Connection, threads: int | None) -> None:
    """Send the names of disent's scores, then time and value of each request, until None arrives."""
    set_threads(threads)
    warnings.filterwarnings("ignore")
    peers = disent_sides()
    connection.send(list(peers))
    while (score := connection.recv()) is not None:
        connection.send(timed(peers[score]["disent"]))


def race(rounds: int, threads: int | None) -> dict[str, Any]:
    """Every side of every score once per round.

    disent has a process of its own: whatever it imports made our MIG take 1.8 times as long when they shared one.
    """
    contest = sides()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_disent, args=(theirs, threads), daemon=True)
    process.start()
    peers = ours.recv()
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for _ in range(rounds):
        for score, contenders in contest.items():
            for name, side in contenders.items():
                found.setdefault(score, {}).setdefault(name, []).append(timed(side))
            if score in peers:
                ours.send(score)
                found[score].setdefault("disent", []).append(ours.recv())
    ours.send(None)
    return {
        score: {name: _summary(own, by_name["unbraid"]) for name, own in by_name.items()}
        for score, by_name in found.items()
    }


def timed(side: Side) -> tuple[float, float]:
    """Return the mean seconds of a call, after a first one, and its value."""
    side()
    calls, start = 0, time.perf_counter()
    while True:
        value, calls = side(), calls + 1
        taken = time.perf_counter() - start
        if taken >= MIN_SECONDS_PER_SIDE:
            return taken / calls, value


def _summary(own: list[tuple[float, float]], ours: list[tuple[float, float]]) -> dict[str, float]:
    ratios = [a / b for (a, _), (b, _) in zip(own, ours, strict=True)]
    return {
        "seconds": statistics.median(taken for taken, _ in own),
        "times_ours": statistics.median(ratios),
        "value": own[0][1],
    }


def end_to_end(votes: int = 200) -> dict[str, float]:
    """Time the FactorVAE score of an untrained network on small sprites, including encoding."""
    data = load_data("sprites-small")
    assert isinstance(data, FactorDataset)
    config = configure("vae", Choice("sprites-small"), data, {"network": "mlp"})
    model = prepare(config, data).group.skeleton.model
    evaluation = Evaluation(model, data)
    start = time.perf_counter()
    evaluate(evaluation, ["factorvae/majority-vote"])
    ours = time.perf_counter() - start
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(votes):
            model.encode(data.images(torch.as_tensor(rng.integers(len(data), size=BATCH))))["z"].numpy().var(0)
    reference = (time.perf_counter() - start) / votes * sum(VOTES)
    return {"unbraid": ours, "reference": reference, "times_ours": reference / ours, "votes_timed": votes}


def race_dci() -> dict[str, Any]:
    """Each predictor once, and the gap of its three numbers to scikit-learn's gradient boosting.

    Minutes pass between the first and the last, so besides wall-clock seconds there are those that the processor spent
    on this process, over all threads, which other programs hardly change.
    """
    codes, factors = make_codes(ROWS + TEST, 0)
    start = time.perf_counter(), time.process_time()
    for column in factors[:ROWS].T:
        model = GradientBoostingClassifier(random_state=0).fit(codes[:ROWS], column)
        model.score(codes[ROWS:], factors[ROWS:, 0])
    found: dict[str, Any] = {REFERENCE: _seconds(start)}
    for predictor in ("gbt", "booster", "random-forest", "lasso"):
        start = time.perf_counter(), time.process_time()
        scores = metrics.dci(codes, factors, predictor=predictor, train=ROWS, test=TEST)
        found[predictor] = {**_seconds(start), **{score.part: score.value for score in scores}}
        print(predictor, found[predictor], file=sys.stderr, flush=True)
    for name, own in found.items():
        own["times_faster"] = found[REFERENCE]["seconds"] / own["seconds"]
        own["times_less_work"] = found[REFERENCE]["processor_seconds"] / own["processor_seconds"]
        if name != "gbt" and "completeness" in own:
            own["gap"] = {part: own[part] - found["gbt"][part] for part in PARTS}
    return found


def _seconds(start: tuple[float, float]) -> dict[str, float]:
    return {"seconds": time.perf_counter() - start[0], "processor_seconds": time.process_time() - start[1]}


def suite(folder: Path, rows: int, device: str, exact: bool) -> dict[str, Any]:
    """Return the processor seconds of every score on `rows` encoded images, and of the exact ones on all rows.

    Other programs hardly change the processor's seconds, of all threads; `total` and `clock` are times on the clock.
    A score that another process computes has a time on the clock only; `--threads 1` keeps all in this process.
    """
    run = load(folder, device=device)
    some = run.evaluation.subsample(rows)
    names = expand(["full"])
    found: dict[str, Any] = {"rows": rows, "device": str(run.device)}
    start = time.perf_counter()
    some.encode_means(torch.arange(len(some), device=some.rows.device))
    found["encoding"] = time.perf_counter() - start
    parts = {
        "sampled": [(some, name) for name in names if not name.endswith("/exact")],
        "exact": [(run.evaluation, name) for name in names if exact and name.endswith("/exact")],
    }
    for title, asked in parts.items():
        if not asked:
            continue
        seconds, clock, begin, spent = {}, {}, time.perf_counter(), sum(os.times()[:4])
        with schedule_metrics([(asked[0][0], {name: {} for _, name in asked})]) as (schedule,):
            for name in schedule.order:
                start, at = time.process_time(), time.perf_counter()
                try:
                    scores = schedule.measure(name)
                except UsageError as error:
                    print(f"{name} is left out: {error}", file=sys.stderr)
                    continue
                seconds[name] = round(time.process_time() - start, 2)
                clock[name] = round(scores[0].seconds, 2)
                text = f"{clock[name]:6.2f} on the clock, waited {time.perf_counter() - at:.2f}"
                print(f"{name:40} {seconds[name]:8.2f} s, {text}", file=sys.stderr, flush=True)
        total = round(time.perf_counter() - begin, 3)
        for process in multiprocessing.active_children():
            process.join()
        processor = round(sum(os.times()[:4]) - spent, 3)
        found[title] = {
            "total": total,
            "processor": processor,
            "clock": clock,
            **dict(sorted(seconds.items(), key=lambda item: -item[1])),
        }
    return found


def suite_of_sweep(folder: Path, device: str) -> dict[str, Any]:
    """Return the seconds of `unbraid evaluate SWEEP --metric full`, from start to end, and those of each metric.

    The seconds of a metric are the mean over runs, on the clock of the process that measured it beside others.
    """
    command = [sys.executable, "-m", "unbraid", "evaluate", str(folder), "--metric", "full", "--device", device]
    start = time.perf_counter()
    ran = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    taken = time.perf_counter() - start
    seconds: dict[str, list[float]] = {}
    for scores in json.loads(ran.stdout).values():
        for name, own in {f"{score['metric']}/{score['protocol']}": score["seconds"] for score in scores}.items():
            seconds.setdefault(name, []).append(own)
    means = {name: round(statistics.fmean(own), 3) for name, own in seconds.items()}
    return {
        "device": device,
        "runs": len(json.loads(ran.stdout)),
        "seconds": round(taken, 1),
        "shared_gpu": shutil.which(PROGRAM) is not None,
        "mean_of_metrics": dict(sorted(means.items(), key=lambda item: -item[1])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dci", action="store_true")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--sampled", action="store_true", help="leave out the exact scores, which encode all rows")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    set_threads(asked.threads)
    warnings.filterwarnings("ignore")
    if asked.sweep is not None:
        found = {"suite": suite_of_sweep(asked.sweep, asked.device)}
    elif asked.run is not None:
        found = {"suite": suite(asked.run, asked.rows, asked.device, not asked.sampled)}
    elif asked.dci:
        found = {"dci": race_dci()}
    else:
        found = {**race(asked.rounds, asked.threads), "factorvae, end to end": end_to_end()}
    device = found["suite"]["device"] if "suite" in found else "cpu"
    record = {**facts("metrics.py", device, ("scikit-learn", "disent")), **found}
    print(json.dumps(record, indent=1))
    if asked.out is not None:
        write(asked.out, record)


if __name__ == "__main__":
    main()
