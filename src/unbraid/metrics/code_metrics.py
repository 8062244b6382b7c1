"""Functions on arrays of codes and factors that are metrics of runs, too."""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, get_args, get_origin

from unbraid.metrics.base import CodeTable, Evaluation
from unbraid.metrics.levels import add_levels
from unbraid.metrics.score import Score, register_variant
from unbraid.metrics.train_test_split import describe_repeated_rows, draw_table

PUBLISHED = "disentanglement_lib"
MAX_CODES_OF_A_CORE = 2**20
"""Numbers, rows x latents, up to which one core is quicker than a GPU, which mostly waits for tiny kernels to start."""

_codes_stay_on_gpu = False


@contextmanager
def keep_codes_on_gpu(wanted: bool = True) -> Iterator[None]:
    """Leave even few codes on a GPU inside the block, if `wanted`: other processes need the cores."""
    global _codes_stay_on_gpu
    before, _codes_stay_on_gpu = _codes_stay_on_gpu, wanted
    try:
        yield
    finally:
        _codes_stay_on_gpu = before


FACTORS = Parameter("factors", Parameter.KEYWORD_ONLY, default=None, annotation=tuple[str, ...] | None)


def code_metric(
    name: str,
    summary: str,
    reference: str,
    *,
    settings: str,
    defaults: Mapping[str, Any] | None = None,
    levels: bool = True,
    codes: Literal["mean", "sampled"] = "mean",
    annotate: Callable[[Score, Evaluation], Score] | None = None,
    **facts: Any,
) -> Callable[[Any], Any]:
    """Return the decorator that registers one protocol of a function `(codes, factors, *, settings)` on arrays.

    `settings` names the function's arguments that a run may set. `samples`, or `train` and `test` together, is the
    number of rows; a function without `samples` scores as many as the default says. `defaults` differ from those of the
    function. An argument `protocol` or `predictor` gets the protocol, `family` the part of the name before it, and
    `compat` gets disentanglement_lib. `codes` are posterior means, or one sample of each posterior. `levels` measures
    chance and ceiling, which takes about twice the time of the score without its interval; `annotate` adds what the
    function cannot know to its scores.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        known, (family, _, protocol) = signature(function).parameters, name.partition("/")
        published = protocol == PUBLISHED
        fixed = {key: protocol for key in (("compat",) if published else ("protocol", "predictor")) if key in known}
        fixed |= {"family": family} if "family" in known else {}

        def call(evaluation: Evaluation, *, factors: Sequence[str] | None = None, **chosen: Any) -> Any:
            table, rows = _tabulate(evaluation, factors, chosen, codes, draw=published and "rows" in known)
            own = {key: value for key, value in chosen.items() if key in known}
            few = table.codes.numel() <= MAX_CODES_OF_A_CORE and not facts.get("prefers_gpu")
            if (few or facts.get("prefers_core")) and not _codes_stay_on_gpu:
                table = table.to_cpu()

            drawn = "rows" in rows and "train" in chosen
            repeated = describe_repeated_rows(len(evaluation), chosen["train"]) if drawn else {}

            def compute(table: CodeTable) -> Any:
                result = table.score(function, **fixed, **rows, **own)
                scores = add_levels(result, table, function, {**fixed, **rows, **own}) if levels else result
                if repeated:
                    listed = [scores] if isinstance(scores, Score) else scores
                    scores = [replace(score, details={**score.details, **repeated}) for score in listed]
                return scores if annotate is None else [annotate(score, evaluation) for score in scores]

            return partial(compute, table)

        parameters = [_build_setting(known.get(key), key, defaults or {}) for key in settings.split()]
        register_variant(name, summary, function, call, [FACTORS, *parameters], reference=reference, **facts)
        return function

    return register


def _tabulate(
    evaluation: Evaluation,
    factors: Sequence[str] | None,
    chosen: Mapping[str, Any],
    codes: Literal["mean", "sampled"],
    draw: bool,
) -> tuple[CodeTable, dict[str, Any]]:
    """Return the codes and factors of the rows that the settings choose, and which of them are for training."""
    test = chosen.get("test", 1)
    if draw and "samples" in chosen:
        table, rows = draw_table(evaluation, chosen["samples"] or len(evaluation), 1, factors)
        return table, {"rows": rows.train}
    if draw:
        table, rows = draw_table(evaluation, chosen["train"], test, factors)
        return table, {"rows": rows}
    train = max(chosen["labels"], default=0) if "labels" in chosen else chosen.get("train", 0)
    return evaluation.tabulate(chosen["samples"] if "samples" in chosen else train + test, factors, codes), {}


def _build_setting(own: Parameter | None, key: str, defaults: Mapping[str, Any]) -> Parameter:
    """Return a setting like an argument of a function; what is a sequence there is a tuple."""
    kind = int | None if own is None else own.annotation
    kind = types.GenericAlias(tuple, (*get_args(kind), ...)) if get_origin(kind) is Sequence else kind
    default = defaults[key] if key in defaults or own is None else own.default
    return Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
