"""Failures of metrics that are the user's own: one sentence that names the metric, its file and the line."""

import inspect
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from unbraid.errors import RunError, UnbraidError
from unbraid.memory import is_out_of_memory
from unbraid.metrics.score import Score, metric
from unbraid.plugins import describe_origin
from unbraid.printable import shorten


@contextmanager
def blame_own_metric(name: str) -> Iterator[None]:
    """Raise a `RunError` that names a metric of the user's own if it fails; other metrics raise what they raise."""
    try:
        yield
    except UnbraidError:
        raise
    except Exception as error:
        make = inspect.unwrap(metric[name].make)
        if not describe_origin(make) or is_out_of_memory(error):
            raise
        file = getattr(sys.modules.get(make.__module__), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        reason = shorten((str(error).strip().splitlines() or [""])[0], 200).rstrip(".")
        what = f"{type(error).__name__}{': ' if reason else ''}{reason}"
        raise RunError(f"Your metric '{name}' fails ({_name_place(make, lines)}): {what}.") from error


def check_own_scores(name: str, result: Any) -> Any:
    """Return the result of a metric; if it is the user's own, raise a `RunError` unless it is made of scores."""
    make = inspect.unwrap(metric[name].make)
    if not describe_origin(make):
        return result
    scores = list(result) if isinstance(result, Sequence) and not isinstance(result, str) else [result]
    family, _, protocol = name.partition("/")
    for score in scores:
        if not isinstance(score, Score):
            wanted = f'Score("{family}", "{protocol}", value, samples=len(evaluation)), or a list of such scores'
            raise RunError(
                f"Your metric '{name}' ({_name_place(make)}) returns a {type(score).__name__}; it must return {wanted}."
            )
    try:
        return [replace(score, value=float(score.value)) for score in scores]
    except (TypeError, ValueError) as error:
        raise RunError(f"Your metric '{name}' ({_name_place(make)}) has a value that is no number.") from error


def _name_place(make: Any, lines: Sequence[int | None] = ()) -> str:
    """Return the file of a function and the last of these lines, or the one in which the function begins."""
    file = describe_origin(make).get("file", make.__module__)
    code = getattr(make, "__code__", None)
    line = lines[-1] if lines else code and code.co_firstlineno
    return f"{file}, line {line}" if line else file
