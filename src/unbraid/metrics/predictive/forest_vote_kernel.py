"""Triton kernel of `forest.py` that asks each tree of `forest_kernel.grow` for a block of test rows."""

from typing import no_type_check

import triton
import triton.language as tl

VOTE = tl.constexpr(1 << 40)
"""A tree's vote for a row, of which the classes in a leaf get shares; whole numbers add up to the same in any order."""


@triton.jit(do_not_specialize=["rows", "features", "trees", "first_job", "classes", "asked"])
@no_type_check
def predict(
    codes, values, weights, lists, firsts, sizes, splits, thresholds, children, votes, means,
    rows, features, trees, first_job, classes, asked, REAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the votes of one tree for a block of test rows, whose codes are [features, asked].

    `votes` are [targets, asked, classes]; if REAL, the values of the leaves go to `means` [jobs, asked] instead.
    """
    program = tl.program_id(0).to(tl.int64)
    job = first_job + tl.program_id(0)
    target = (job // trees).to(tl.int64)
    firsts += program * 2 * rows
    sizes += program * 2 * rows
    splits += program * 2 * rows
    thresholds += program * 2 * rows
    children += program * 2 * rows
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < asked
    node = tl.zeros([BLOCK], tl.int32)
    split = tl.load(splits + node)
    while tl.max(split, 0) >= 0:
        x = tl.load(codes + split * asked + row, mask=inside & (split >= 0), other=0.0).to(tl.float64)
        left = tl.load(children + node)
        right = (x > tl.load(thresholds + node)).to(tl.int32)
        node = tl.where(split >= 0, left + right, node)
        split = tl.load(splits + node)
    if REAL:
        tl.store(means + job.to(tl.int64) * asked + row, tl.load(thresholds + node), mask=inside)
    else:
        values += target * rows
        weights += (job % trees).to(tl.int64) * rows
        lists += program * features * 2 * rows
        votes += (target * asked + row) * classes
        label = tl.load(children + node)
        is_pure = label >= 0
        tl.atomic_add(votes + label, tl.full([BLOCK], VOTE, tl.int64), mask=inside & is_pure, sem="relaxed")
        first = tl.load(firsts + node)
        size = tl.where(inside & (is_pure == 0), tl.load(sizes + node), 0)
        longest = tl.max(size, 0)
        total = tl.zeros([BLOCK], tl.int64)
        i = 0
        while i < longest:
            of_leaf = tl.load(lists + first + i, mask=i < size, other=0)
            total += tl.load(weights + of_leaf, mask=i < size, other=0)
            i += 1
        total = tl.maximum(total, 1)
        i = 0
        while i < longest:
            of_leaf = tl.load(lists + first + i, mask=i < size, other=0)
            label = tl.load(values + of_leaf, mask=i < size, other=0)
            weight = tl.load(weights + of_leaf, mask=i < size, other=0)
            tl.atomic_add(votes + label, weight.to(tl.int64) * VOTE // total, mask=i < size, sem="relaxed")
            i += 1
