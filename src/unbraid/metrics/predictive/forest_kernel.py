"""Triton kernel of `forest.py` that grows one tree per program; `forest_vote_kernel` asks the trees.

A tree keeps, for each code, the list of its rows sorted by that code. A node is a segment of every list. A split
divides each segment in two, stably, so the lists stay sorted and nothing is ever sorted again. There are two copies of
the lists: a node is read from one, and its children are written to the other, over what the node's parent left there.
So `first`, the position of a segment in a list of `2 * rows` places, also says in which copy it is.

Nodes are split in the order of their ids, which they get as they are made, so no stack is needed. A barrier after each
node makes what it wrote to global memory visible to the next, and keeps the next from overwriting what it still reads.
The class counts of a node with more rows than a block are in global memory, too, and have barriers of their own.

Gini impurity needs S_L = sum_k L_k^2 and S_R = sum_k (T_k - L_k)^2 = sum_k T_k^2 - 2 sum_k T_k L_k + S_L, where T_k is
the weight of class k in the node and L_k its weight left of a split. A row of class c and weight w that moves to the
left adds w (2 L_c + w) to S_L and w T_c to sum_k T_k L_k. So two running sums are enough, however many classes there
are. They are whole numbers in float64, and the impurity is computed as scikit-learn does it, without fused operations,
so that splits of a code tie here if they tie there.
"""

from typing import no_type_check

import triton
import triton.language as tl

_GAP = tl.constexpr(1e-7)
"""Codes that differ by no more are the same value, as in scikit-learn."""

_NOTHING = tl.constexpr(2**31 - 1)
_EPSILON = tl.constexpr(2.220446049250313e-16)


@triton.jit
@no_type_check
def _match(label, weight, BLOCK: tl.constexpr):
    """Return the weight of rows with the same class before each row of a block, and in the whole block."""
    place = tl.arange(0, BLOCK)
    alike = tl.where(label[:, None] == label[None, :], weight[:, None], 0)
    before = tl.where(place[:, None] < place[None, :], alike, 0)
    return tl.sum(before, 0), tl.sum(alike, 0)


@triton.jit
@no_type_check
def _clear(counts, classes, BLOCK: tl.constexpr):
    """Set the counts of so many classes to 0."""
    k = 0
    while k < classes:
        place = k + tl.arange(0, BLOCK)
        tl.store(counts + place, tl.zeros([BLOCK], tl.int32), mask=place < classes)
        k += BLOCK
        tl.debug_barrier()


@triton.jit
@no_type_check
def _count(counts, label, weight, before, within, inside):
    """Add a block of rows to the counts, and return the weight of rows with the same class before each row."""
    base = tl.load(counts + label, mask=inside, other=0)
    tl.debug_barrier()  # all counts are read before any is written
    # The last row of each class in the block writes; weights are above 0.
    tl.store(counts + label, base + within, mask=inside & (before + weight == within))
    tl.debug_barrier()
    return before + base


@triton.jit
@no_type_check
def _list_rows(order, weights, lists, rows, features, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Write the rows with a weight to each list, in the order of its code, and return their number."""
    total = 0
    first_feature = 0
    while first_feature < features:
        feature = first_feature + tl.arange(0, TILE)
        size = tl.zeros([TILE], tl.int32)
        i = 0
        while i < rows:
            at = i + tl.arange(0, BLOCK)
            inside = (feature < features)[:, None] & (at < rows)[None, :]
            row = tl.load(order + feature[:, None] * rows + at[None, :], mask=inside, other=0)
            kept = (tl.load(weights + row, mask=inside, other=0) > 0).to(tl.int32)
            place = size[:, None] + tl.cumsum(kept, 1) - 1
            tl.store(lists + feature[:, None] * (2 * rows) + place, row, mask=kept > 0)
            size += tl.sum(kept, 1)
            i += BLOCK
        total = tl.max(size, 0)
        first_feature += TILE
    return total


@triton.jit
@no_type_check
def _divide(
    column, threshold, lists, first, size, middle, rows, features, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a node's rows to the other copy of the lists: those up to a threshold first, then the others."""
    target = tl.where(first < rows, first + rows, first - rows)
    first_feature = 0
    while first_feature < features:
        feature = first_feature + tl.arange(0, TILE)
        known = feature < features
        base = feature * (2 * rows)
        left_before = tl.zeros([TILE], tl.int32)
        i = 0
        while i < size:
            at = i + tl.arange(0, BLOCK)
            inside = known[:, None] & (at < size)[None, :]
            row = tl.load(lists + base[:, None] + (first + at)[None, :], mask=inside, other=0)
            value = tl.load(column + row, mask=inside, other=0.0).to(tl.float64)
            left = (inside & (value <= threshold)).to(tl.int32)
            lefts = left_before[:, None] + tl.cumsum(left, 1)  # with the row itself
            place = tl.where(left > 0, lefts - 1, middle + at[None, :] - lefts)
            tl.store(lists + base[:, None] + target + place, row, mask=inside)
            left_before += tl.sum(left, 1)
            i += BLOCK
        first_feature += TILE
    return target


@triton.jit
@no_type_check
def _sum_node(lists, weights, values, totals, first, size, classes, REAL: tl.constexpr, BLOCK: tl.constexpr):
    """Return a node's weight, sum, sum of squares, mean and impurity, whether it is pure, and its largest class.

    The squares are those of class weights, or of values if REAL. `totals` gets the class weights of a large node.
    """
    lane = tl.arange(0, BLOCK)
    is_large = size > BLOCK
    weight_lanes = tl.zeros([BLOCK], tl.int32)
    sum_lanes = tl.zeros([BLOCK], tl.float64)
    square_lanes = tl.zeros([BLOCK], tl.float64)
    least = tl.full([BLOCK], float("inf"), tl.float64)
    most = tl.full([BLOCK], float("-inf"), tl.float64)
    label_lanes = tl.full([BLOCK], -1, tl.int32)
    if not REAL:
        _clear(totals, tl.where(is_large, classes, 0), BLOCK)
    i = 0
    while i < size:
        inside = i + lane < size
        row = tl.load(lists + first + i + lane, mask=inside, other=0)
        weight = tl.load(weights + row, mask=inside, other=0)
        weight_lanes += weight
        if REAL:
            value = tl.load(values + row, mask=inside, other=0.0)
            sum_lanes += weight * value
            square_lanes += weight * value * value
            least = tl.minimum(least, tl.where(inside, value, float("inf")))
            most = tl.maximum(most, tl.where(inside, value, float("-inf")))
        else:
            label = tl.load(values + row, mask=inside, other=-1)
            before, within = _match(label, weight, BLOCK)
            if is_large:
                before = _count(totals, label, weight, before, within, inside)
            square_lanes += (weight.to(tl.int64) * (2 * before + weight)).to(tl.float64)
            label_lanes = tl.maximum(label_lanes, label)
        i += BLOCK
    node_weight = tl.sum(weight_lanes, 0).to(tl.float64)
    node_sum = tl.sum(sum_lanes, 0)
    node_square = tl.sum(square_lanes, 0)
    if REAL:
        mean = node_sum / node_weight
        impurity = node_square / node_weight - mean * mean
        is_pure = (impurity <= _EPSILON) | (tl.max(most, 0) <= tl.min(least, 0))
    else:
        mean = node_sum
        impurity = 1.0 - node_square / (node_weight * node_weight)
        is_pure = impurity <= _EPSILON
    return node_weight, node_sum, node_square, mean, impurity, is_pure, tl.max(label_lanes, 0)


@triton.jit
@no_type_check
def _scan_code(
    list_start, values_of_code, weights, values, totals, lefts, size, classes, node_weight, node_sum, node_square,
    feature, visited, best, best_feature, best_threshold, best_place, REAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the best split of each lane after the splits of one code, from its sorted list, were tried, too.

    A split is a value, a code, a threshold and a place in the order of all splits, of which the first wins.
    """
    lane = tl.arange(0, BLOCK)
    is_large = size > BLOCK
    weight_base = 0
    sum_base = node_weight * 0
    cross_base = node_weight * 0
    if not REAL:
        _clear(lefts, tl.where(is_large, classes, 0), BLOCK)
    i = 0
    while i < size:
        at = i + lane
        inside = at < size
        row = tl.load(list_start + at, mask=inside, other=0)
        following = tl.load(list_start + at + 1, mask=at + 1 < size, other=0)
        x = tl.load(values_of_code + row, mask=inside, other=0.0)
        x_next = tl.load(values_of_code + following, mask=at + 1 < size, other=0.0)
        weight = tl.load(weights + row, mask=inside, other=0)
        weight_left = (weight_base + tl.cumsum(weight, 0)).to(tl.float64)
        weight_right = node_weight - weight_left
        safe_right = tl.where(weight_right > 0, weight_right, 1.0)
        if REAL:
            value = tl.load(values + row, mask=inside, other=0.0)
            added = weight * value
            sum_left = sum_base + tl.cumsum(added, 0)
            sum_right = node_sum - sum_left
            quality = sum_left * sum_left / weight_left + sum_right * sum_right / safe_right
            crossed = added
        else:
            label = tl.load(values + row, mask=inside, other=-1)
            before, within = _match(label, weight, BLOCK)
            in_node = within
            if is_large:
                in_node = tl.load(totals + label, mask=inside, other=0)
                before = _count(lefts, label, weight, before, within, inside)
            added = (weight.to(tl.int64) * (2 * before + weight)).to(tl.float64)
            crossed = (weight.to(tl.int64) * in_node).to(tl.float64)
            square_left = sum_base + tl.cumsum(added, 0)
            square_right = node_square - 2.0 * (cross_base + tl.cumsum(crossed, 0)) + square_left
            impurity_left = 1.0 - square_left / (weight_left * weight_left)
            impurity_right = 1.0 - square_right / (safe_right * safe_right)
            quality = -weight_right * impurity_right - weight_left * impurity_left
        is_split = (at + 1 < size) & (x_next > x + _GAP)
        is_better = is_split & (quality > best)
        middle_value = x.to(tl.float64) / 2 + x_next.to(tl.float64) / 2
        best = tl.where(is_better, quality, best)
        best_feature = tl.where(is_better, feature, best_feature)
        best_threshold = tl.where(is_better, middle_value, best_threshold)
        best_place = tl.where(is_better, visited * size + at, best_place)
        if is_large:
            weight_base += tl.sum(weight, 0)
            sum_base += tl.sum(added, 0)
            cross_base += tl.sum(crossed, 0)
        i += BLOCK
    return best, best_feature, best_threshold, best_place


@triton.jit
@no_type_check
def _find_splits(
    codes, lists, weights, values, totals, lefts, first, size, rows, features, classes, max_features, keys,
    node_weight, node_sum, node_square, is_open, REAL: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the best split of each lane, as `_scan_code` does; none if the node is not open to splits.

    Codes are visited in the order of their random `keys`.
    """
    column = tl.arange(0, WIDTH)
    known = column < features
    best = tl.full([BLOCK], float("-inf"), tl.float64)
    best_feature = tl.zeros([BLOCK], tl.int32)
    best_threshold = tl.zeros([BLOCK], tl.float64)
    best_place = tl.full([BLOCK], _NOTHING, tl.int32)
    if is_open:
        start = lists + column * (2 * rows) + first
        low = tl.load(codes + column * rows + tl.load(start, mask=known, other=0), mask=known, other=0.0)
        last = tl.load(start + size - 1, mask=known, other=0)
        high = tl.load(codes + column * rows + last, mask=known, other=0.0)
        varies = (known & (high > low + _GAP)).to(tl.int32)
        keys = tl.where(known, keys, _NOTHING)
        missing = tl.max(varies, 0)
        visited = 0
        # Constant codes count among the `max_features`, but at least one that varies must be visited.
        while (visited < features) & ((visited < max_features) | (missing > 0)):
            feature = tl.argmin(keys, 0)
            keys = tl.where(column == feature, _NOTHING, keys)
            if tl.sum(tl.where(column == feature, varies, 0), 0) > 0:
                missing = 0
                best, best_feature, best_threshold, best_place = _scan_code(
                    lists + feature * (2 * rows) + first, codes + feature * rows, weights, values, totals, lefts,
                    size, classes, node_weight, node_sum, node_square, feature, visited,
                    best, best_feature, best_threshold, best_place, REAL, BLOCK,
                )  # fmt: skip
            visited += 1
    return best, best_feature, best_threshold, best_place


@triton.jit
@no_type_check
def _choose_split(best, best_feature, best_threshold, best_place, top, size):
    """Return code and threshold of the first of equally good splits, and the number of rows on its left."""
    place = tl.min(tl.where(best == top, best_place, _NOTHING), 0)
    chosen = (best == top) & (best_place == place)
    feature = tl.sum(tl.where(chosen, best_feature, 0), 0)
    threshold = tl.sum(tl.where(chosen, best_threshold, 0.0), 0)
    return feature, threshold, place % size + 1


@triton.jit
@no_type_check
def _add_children(firsts, sizes, target, size, left_size):
    """Write the segments of a node's two children."""
    tl.store(firsts, target)
    tl.store(sizes, left_size)
    tl.store(firsts + 1, target + left_size)
    tl.store(sizes + 1, size - left_size)


@triton.jit(do_not_specialize=["rows", "features", "trees", "first_job", "classes", "max_features", "min_rows"])
@no_type_check
def grow(
    codes, values, order, weights, seeds, lists, counts, firsts, sizes, splits, thresholds, children, importances,
    rows, features, trees, first_job, classes, max_features, min_rows,
    REAL: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grow the tree of one job, a target and a tree, from codes [features, rows] and their `order`.

    Inputs: `values` [targets, rows] are classes, or centred real numbers if REAL; `weights` [trees, rows] count how
    often a tree drew each row; `seeds` are [trees].

    Scratch of each program: `lists` [features, 2, rows] and `counts` [2, classes].

    Outputs of each program, [2 * rows] nodes: `firsts` and `sizes` of segments, `splits` (the code, or -1 for a leaf),
    `thresholds` (or a leaf's mean) and `children` (the left one, which the right one follows; or a pure leaf's class,
    or -1). `importances` are [jobs, features + 1], the last of them the number of nodes.

    WIDTH is a power of two of at least `features`.
    """
    program = tl.program_id(0).to(tl.int64)
    job = first_job + tl.program_id(0)
    tree = job % trees
    values += (job // trees).to(tl.int64) * rows
    weights += tree.to(tl.int64) * rows
    seed = tl.load(seeds + tree)
    lists += program * features * 2 * rows
    totals = counts + program * 2 * classes
    lefts = totals + classes
    firsts += program * 2 * rows
    sizes += program * 2 * rows
    splits += program * 2 * rows
    thresholds += program * 2 * rows
    children += program * 2 * rows

    column = tl.arange(0, WIDTH)
    importance = tl.zeros([WIDTH], tl.float64)

    size = _list_rows(order, weights, lists, rows, features, TILE, BLOCK)
    tl.store(firsts, 0)
    tl.store(sizes, size)
    tl.debug_barrier()
    node = 0
    count = 1
    while node < count:
        first = tl.load(firsts + node)
        size = tl.load(sizes + node)
        node_weight, node_sum, node_square, mean, impurity, is_pure, label = _sum_node(
            lists, weights, values, totals, first, size, classes, REAL, BLOCK
        )
        best, best_feature, best_threshold, best_place = _find_splits(
            codes, lists, weights, values, totals, lefts, first, size, rows, features, classes, max_features,
            tl.randint(seed, node * WIDTH + column) & 0x3FFFFFFF, node_weight, node_sum, node_square,
            (size >= min_rows) & (is_pure == 0), REAL, WIDTH, BLOCK,
        )  # fmt: skip
        top = tl.max(best, 0)
        if top > float("-inf"):
            feature, threshold, left_size = _choose_split(best, best_feature, best_threshold, best_place, top, size)
            if REAL:
                decrease = top - node_sum * mean
            else:
                decrease = top + node_weight * impurity
            importance += tl.where(column == feature, decrease, 0.0)
            target = _divide(
                codes + feature * rows, threshold, lists, first, size, left_size, rows, features, TILE, BLOCK
            )
            tl.store(splits + node, feature)
            tl.store(thresholds + node, threshold)
            tl.store(children + node, count)
            _add_children(firsts + count, sizes + count, target, size, left_size)
            count += 2
        else:
            tl.store(splits + node, -1)
            tl.store(thresholds + node, mean)
            tl.store(children + node, tl.where(is_pure, label, -1))
        tl.debug_barrier()  # the next node may read what this one wrote, and write where it read
        node += 1
    importances += job.to(tl.int64) * (features + 1)
    tl.store(importances + column, importance, mask=column < features)
    tl.store(importances + features, count.to(tl.float64))
