"""How often 95% intervals contain what they promise, score by score.

    python benchmarks/coverage.py                    # results/coverage, hours of one core; continues a stop
    python benchmarks/coverage.py --quick            # fewer repetitions of cheap scores, half a minute; writes nothing
    python benchmarks/coverage.py --only downstream  # groups of scores, or cells: "kernels, tied, 1000"
    python benchmarks/coverage.py --again            # also what was measured with another number of repetitions
    python benchmarks/coverage.py --jobs 10          # in ten processes of one thread each
    python benchmarks/coverage.py --take other.json  # take over the cells of a file that another computer wrote
    python benchmarks/coverage.py --plan             # only the page, with the cost of what is not measured yet

A repetition draws rows anew and scores them. A "spread at n rows" must contain the mean over repetitions, a "value over
all rows" the value over a million rows (over the whole population for trained runs), a "value over all draws" the mean
over other draws from the same rows. `coverage_cells.py` describes codes and runs.

Where an interval is costly, `widths` of the repetitions measure it; each of these widths is then tried around the value
of every repetition. An entry lies outside .92 to .98 if the 95% interval of the coverage itself for that many
repetitions (clopper1934) does. Where less than a tenth of the repetitions print an interval, an entry counts as "none".
"""

import argparse
import json
import multiprocessing
import os
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coverage_cells import GROUPS, ROWS, Cell, find_truth, list_cells, repeat
from coverage_page import describe

from unbraid import atomic
from unbraid.experiments.writing import find_commit
from unbraid.metrics import Score
from unbraid.metrics.intervals import ALL_ROWS

MIN_SHARE_PRINTED = 0.1

NOT_ASKED = "resamples"
"""Word of a score that was measured without its interval."""

CHUNK = 10
"""Repetitions that a process measures at a time."""


def summarise(repetitions: Sequence[Sequence[Score]], truth: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Return coverage and its parts for each score."""
    by_name: dict[str, list[Score]] = {}
    for scores in repetitions:
        for score in scores:
            by_name.setdefault(score.name, []).append(score)
    return {name: _summarise_score(scores, truth.get(name)) for name, scores in by_name.items()}


def _summarise_score(scores: Sequence[Score], truth: float | None) -> dict[str, Any]:
    values = np.array([score.value for score in scores])
    printed = [score for score in scores if score.interval is not None]
    asked = [score for score in scores if score.interval is not None or NOT_ASKED not in score.covers]
    record: dict[str, Any] = {
        "repetitions": len(values),
        "mean": float(values.mean()),
        "deviation": float(values.std(ddof=1)),
        "printed": len(printed),
    }
    if len(printed) <= MIN_SHARE_PRINTED * len(asked):
        return {**record, "promise": next((s.covers for s in asked if s.interval is None), scores[0].covers)}
    promise = printed[0].covers
    target = truth if promise == ALL_ROWS and truth is not None else float(values.mean())
    record |= {"promise": promise, "target": target}
    if values.std() < 1e-12:
        return {**record, "note": "the same value in every repetition"}
    if len(printed) == len(values):
        hits = np.array([s.interval[0] <= target <= s.interval[1] for s in scores])
        coverage = float(hits.mean())
    else:
        reach = np.array([_find_reach(score) for score in printed])
        inside = (values - reach[:, :1] <= target) & (target <= values + reach[:, 1:])  # [widths, repetitions]
        coverage = float(inside.mean())
        record["widths"] = len(printed)
    width = float(np.mean([s.interval[1] - s.interval[0] for s in printed]) / 2)
    return {**record, "coverage": round(coverage, 3), "half_width": width}


def _find_reach(score: Score) -> tuple[float, float]:
    """Return how far an interval reaches below and above its value.

    An end at 0 or 1 was cut off there. That changes no coverage, because no target lies beyond, but around another
    value the interval would not be cut at the same distance; so it gets the reach of the other end.
    """
    low, high = score.interval
    below, above = score.value - low, high - score.value
    return (above if low == 0 else below), (below if high == 1 else above)


def read_record(path: Path | None) -> dict[str, Any]:
    """Return what the file holds, in the order of the cells, whenever they were measured."""
    cells = json.loads(path.read_text())["cells"] if path is not None and path.exists() else {}
    return {"cells": {cell.key: cells[cell.key] for cell in list_cells() if cell.key in cells}}


def estimate_missing(record: dict[str, Any]) -> dict[str, float]:
    """Return the minutes that missing cells would take, from a repetition with an interval and one without."""
    minutes: dict[str, float] = {}
    for cell in list_cells():
        if cell.key in record["cells"] or cell.is_trained:
            continue
        group, place = GROUPS[cell.group], ROWS.index(cell.rows)
        seconds = []
        for widths in (0, 1):
            start = time.process_time()
            repeat(cell, [0], widths)
            seconds.append(time.process_time() - start)
        of_widths = (group.widths or group.repetitions)[place]
        total = seconds[0] * (cell.repetitions - of_widths) + seconds[1] * of_widths
        minutes[cell.key] = total / 60
    return minutes


def measure_all(
    path: Path | None, quick: bool = False, only: Sequence[str] = (), again: bool = False, jobs: int = 1
) -> dict[str, Any]:
    """Measure the cells that the file does not hold yet, and write it after each one.

    `only` names groups or cells. With `again` those count as missing that the file holds with other repetitions.
    """
    record = read_record(path)

    def is_missing(cell: Cell) -> bool:
        return cell.key not in record["cells"] or (again and _count_repetitions(record, cell) != cell.repetitions)

    cells = [
        cell for cell in list_cells(quick) if is_missing(cell) and (not only or {cell.group, cell.key} & set(only))
    ]
    facts = {"command": _state_command(), "commit": find_commit()}
    for cell, repetitions, seconds in _repeat_cells(cells, jobs):
        start = time.process_time()
        scores = summarise(repetitions, find_truth(cell))
        seconds += time.process_time() - start
        record["cells"][cell.key] = {"scores": scores, "seconds": round(seconds, 1), **facts}
        for name, found in scores.items():
            print(f"{cell.key:36} {name:44} {found.get('coverage', found.get('note', found['promise']))}", flush=True)
        if path is not None:
            atomic.write_text(path, json.dumps(record, indent=1))
    return record


def _state_command() -> str:
    """Return the command without the folder, which says nothing about the numbers."""
    words = sys.argv[1:]
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(["python", "benchmarks/coverage.py", *words])


def _count_repetitions(record: dict[str, Any], cell: Cell) -> int:
    return next(iter(record["cells"][cell.key]["scores"].values()))["repetitions"]


def _repeat_cells(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, list[list[Score]], float]]:
    """Yield each cell with the scores of its repetitions and the processor seconds that they took."""
    if jobs == 1:
        for cell in cells:
            yield cell, *_repeat_timed(cell, range(cell.repetitions))
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_prepare_process) as pool:
        waiting: dict[Cell, list[Future[tuple[list[list[Score]], float]]]] = {}
        for cell in cells:  # all at once, so that no process waits for the end of a cell
            starts = range(0, cell.repetitions, CHUNK)
            chunks = [range(start, min(start + CHUNK, cell.repetitions)) for start in starts]
            waiting[cell] = [pool.submit(_repeat_timed, cell, chunk) for chunk in chunks]
        for cell in cells:
            parts = [future.result() for future in waiting.pop(cell)]
            yield cell, [scores for part, _ in parts for scores in part], sum(seconds for _, seconds in parts)


def _repeat_timed(cell: Cell, numbers: Sequence[int]) -> tuple[list[list[Score]], float]:
    start = time.process_time()
    return repeat(cell, numbers), time.process_time() - start


def _prepare_process() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=(), metavar="GROUP|CELL")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--take", type=Path, metavar="JSON")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    asked = parser.parse_args()
    _prepare_process()
    path = None if asked.quick else asked.out / "coverage.json"
    if asked.take is not None:
        measured = read_record(path)["cells"] | read_record(asked.take)["cells"]
        atomic.write_text(asked.out / "coverage.json", json.dumps({"cells": measured}, indent=1))
    elif not asked.plan:
        measure_all(path, asked.quick, asked.only, asked.again, asked.jobs)
    if path is not None:
        record = read_record(path)
        atomic.write_text(path, json.dumps(record, indent=1))
        atomic.write_text(asked.out / "README.md", describe(record, estimate_missing(record) if asked.plan else {}))


if __name__ == "__main__":
    main()
