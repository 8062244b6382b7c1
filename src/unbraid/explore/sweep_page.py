"""The page of several runs: a table of them with their scores, plots, and the explorer of each.

Weights of a member are unpacked when it is opened. Pictures of the data are the same for all and stored once. To keep
the page below 20 MB, weights get fewer bits; if that is not enough, members come without their encoders.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unbraid import atomic
from unbraid.errors import UsageError
from unbraid.explore.bundle import pack, render, to_text
from unbraid.explore.model import ModelGraphs, trace_model
from unbraid.explore.rows import Numbers
from unbraid.explore.run_page import (
    AUTO,
    FEWEST_BITS,
    ExploredRun,
    choose_rows,
    describe_precision,
    describe_run,
    modules,
    store_networks,
)
from unbraid.explore.weights import Precision, Weights

MAX_BYTES = 20_000_000
"""Size up to which a page's members keep their bits."""

ROOM = 0.93
"""Share of the page that weights may take."""

FEWEST_BITS_OF_MANY = 5


def write_sweep_page(path: Path, title: str, members: Sequence[ExploredRun], weights: Precision = AUTO) -> Path:
    """Write one page of several runs and return its path."""
    atomic.write_text(path, render_sweep_page(title, members, weights))
    return path


def render_sweep_page(title: str, members: Sequence[ExploredRun], weights: Precision = AUTO) -> str:
    """Return the page as text."""
    if not members:
        raise UsageError(f"{title} has no finished run that could be explored.")
    members = [choose_rows(member) for member in members]
    graphs = [trace_model(member.evaluation) for member in members]
    first, with_encoders = (weights, True) if weights != AUTO else choose_bits(graphs)
    kept = graphs if with_encoders else [own._replace(encode=None) for own in graphs]
    blocks, described = {}, []
    for place, (member, own) in enumerate(zip(members, kept, strict=True)):
        numbers = Numbers()
        facts = describe_run(member, own, numbers)
        if place and facts["rows"]["observed"] == described[0]["rows"]["observed"]:
            facts["rows"]["observed"] = None  # the first member's
        described.append(facts)
        blocks[f"numbers-{place}"] = pack(numbers.bytes())
    for bits in range(first, FEWEST_BITS_OF_MANY - 1, -1) if isinstance(first, int) and weights == AUTO else [first]:
        stored = [Weights(bits) for _ in members]
        runs = [
            {
                "name": member.name,
                "settings": {key: _plain(value) for key, value in member.settings.items()},
                "run": {**facts, "networks": store_networks(own, place)},
                "weights": place.records,
            }
            for member, own, facts, place in zip(members, kept, described, stored, strict=True)
        ]
        words = describe_precision(bits, bits)
        if not with_encoders:
            words += f"; encoders are left out to keep this file below {MAX_BYTES // 1_000_000} MB"
        packed = {f"weights-{place}": to_text(each.compressed()) for place, each in enumerate(stored)}
        data = {"kind": "sweep", "title": title, "members": runs, "modules": modules(), "precision": words}
        page = render(title, data, {**blocks, **packed})
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def choose_bits(graphs: Sequence[ModelGraphs]) -> tuple[int, bool]:
    """Return how many bits a weight may have for the page to stay below its size, and whether encoders fit.

    A weight of N bits takes about N - 1 after compression, and 7/6 of that as text.
    """
    room = MAX_BYTES * ROOM * 8 * 6 / 7
    decoders = sum(each.decode.weights for each in graphs)
    encoders = sum(each.encode.weights for each in graphs if each.encode is not None)
    whole, half = (int(room / max(1, count)) + 1 for count in (decoders + encoders, decoders))
    if whole >= FEWEST_BITS:
        return min(16, whole), True
    return max(FEWEST_BITS_OF_MANY, min(16, half)), False


def _plain(value: Any) -> str | float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
