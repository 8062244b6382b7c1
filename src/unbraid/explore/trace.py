"""Turn any function of tensors, as an encoder or a decoder, into a graph of a dozen operations.

The function runs on example rows while every operation of torch is recorded (`record.py`). Each is then written as
operations of the graph (`lower.py`); one that is not known there is broken into simpler ones by torch's own table, and
refused in one sentence if that does not help.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from unbraid.errors import UsageError
from unbraid.explore.graph import Graph
from unbraid.explore.lower import Lowering
from unbraid.explore.record import BATCHES, Call, Recording, record, refs_of
from unbraid.explore.rules import RULES

SMALL = 1024
"""Numbers that a constant may have to be stored as it is, even if it comes from fewer."""


def trace(function: Callable[..., Sequence[Tensor] | Tensor], *examples: Tensor) -> Graph:
    """Return the graph of a function of rows; each example holds at least 3 of them."""
    if any(len(each) < BATCHES[1] for each in examples):
        raise UsageError(f"Tracing a network needs {BATCHES[1]} example rows of each input.")

    def outputs(*inputs: Tensor) -> Sequence[Tensor]:
        made = function(*inputs)
        return [made] if isinstance(made, Tensor) else list(made)

    split: dict[Any, Callable[..., Any]] = {}
    while True:
        pair = record(outputs, examples, split)
        unknown = {call.function for call in pair[0].calls if call.function.overloadpacket.__name__ not in RULES}
        if not unknown:
            return _lower(pair)
        found = _decompositions(unknown)
        if not found or found.keys() <= split.keys():
            raise refusal(sorted({call.overloadpacket.__name__ for call in unknown - found.keys()}))
        split.update(found)


def refusal(names: Sequence[str]) -> UsageError:
    """Return the error for operations that the page cannot execute."""
    return UsageError(
        f"The explorer cannot run the operation {', '.join(names)} of this network; write it with convolutions, matrix "
        "products, sums, elementwise functions and reshapes, or explore the run in Python with run.traverse()."
    )


def _decompositions(functions: set[Any]) -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table  # takes a third of a second

    core = core_aten_decompositions()
    known = {f: core[f] if f in core else decomposition_table.get(f) for f in functions}
    return {function: rule for function, rule in known.items() if rule is not None}


def _lower(pair: tuple[Recording, Recording]) -> Graph:
    """Write the operations that results depend on; those without an input of the network become constants."""
    lowering, first = Lowering(pair), pair[0]
    dynamic = {ref.place for ref in first.inputs}
    makers: dict[int, Call] = {}
    for call in first.calls:
        moves = any(ref.place in dynamic for ref in refs_of(call))
        for ref in call.outputs:
            if ref is not None:
                makers[ref.place] = call
                dynamic.update({ref.place} if moves else set())
    compact = _worth_computing(first, makers, dynamic)
    needed = _needed([ref.place for ref in first.outputs], makers, dynamic | compact)
    for call in first.calls:
        if any(ref is not None and ref.place in needed for ref in call.outputs):
            lowering.lower(call)
    lowering.graph.outputs = [lowering.value(ref.place) for ref in first.outputs]
    return lowering.graph.without_unused()


def _worth_computing(recording: Recording, makers: dict[int, Call], dynamic: set[int]) -> set[int]:
    """Return the constants that are far larger than what they are made of: the page computes them itself."""
    sources: dict[int, int] = {}
    chosen = set()
    for place, tensor in enumerate(recording.tensors):
        if place in dynamic or place not in makers or (len(tensor.shape) and tensor.shape[0] in BATCHES):
            sources[place] = tensor.numel()
            continue
        sources[place] = sum({ref.place: sources[ref.place] for ref in refs_of(makers[place])}.values())
        if tensor.is_floating_point() and tensor.numel() > max(SMALL, 2 * sources[place]):
            chosen.add(place)
        else:
            sources[place] = min(sources[place], tensor.numel())
    return chosen


def _needed(outputs: list[int], makers: dict[int, Call], computed: set[int]) -> set[int]:
    """Return the places that operations of the graph have to make."""
    found: set[int] = set()
    waiting = list(outputs)
    while waiting:
        place = waiting.pop()
        if place in computed and place in makers and place not in found:
            found.add(place)
            waiting += [ref.place for ref in refs_of(makers[place])]
    return found
