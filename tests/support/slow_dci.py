"""DCI from the text of eastwood2018, and one gradient boosting, slow and obvious."""

import itertools
import math

import numpy as np


def entropy_to_base(shares, base):
    return -sum(p * math.log(p) / math.log(base) for p in shares if p > 0)


def slow_disentanglement(importance):
    """sum_i rho_i (1 - H_K(P_i)) of R[i][j], code i and factor j; a code that matters for nothing has no weight."""
    total = sum(sum(row) for row in importance)
    score = 0.0
    for row in importance:
        if sum(row) > 0:
            shares = [r / sum(row) for r in row]
            score += sum(row) / total * (1 - entropy_to_base(shares, len(row)))
    return score


def slow_completeness(importance):
    """The same of the transposed matrix, with entropies to base D."""
    return slow_disentanglement([list(column) for column in zip(*importance, strict=True)])


def slow_accuracy(predicted, truth):
    return sum(int(a == b) for a, b in zip(predicted, truth, strict=True)) / len(truth)


def slow_r2(predicted, truth):
    mean = sum(truth) / len(truth)
    error = sum((a - b) ** 2 for a, b in zip(predicted, truth, strict=True))
    return max(0.0, 1 - error / sum((b - mean) ** 2 for b in truth))


def oracle_data(n, seed):
    """tests/oracles.md, row 4: codes [n, 5] and factors [n, 3] of sizes 3, 6, 8."""
    r = np.random.default_rng(seed)
    sizes = (3, 6, 8)
    factors = [r.integers(0, s, n) for s in sizes]
    z = [(v - (s - 1) / 2) / math.sqrt((s * s - 1) / 12) for v, s in zip(factors, sizes, strict=True)]
    cos, sin = math.cos(math.pi / 6), math.sin(math.pi / 6)
    zero = np.zeros(n)
    clean = np.stack([z[0], cos * z[1] + sin * z[2], -sin * z[1] + cos * z[2], zero, zero], axis=1)
    return clean + 0.3 * r.standard_normal((n, 5)), np.stack(factors, axis=1)


def slow_tree(codes, residuals, rows, depth):
    """(code, threshold, left, right) by the largest decrease of squared error, or a list of rows, which is a leaf."""
    best = (0.0, None, None)
    for code in range(codes.shape[1]):
        values = sorted(set(codes[rows, code]))
        for low, high in itertools.pairwise(values):
            left = [r for r in rows if codes[r, code] <= low]
            right = [r for r in rows if codes[r, code] > low]
            means = [sum(residuals[r] for r in side) / len(side) for side in (left, right)]
            gain = len(left) * len(right) / len(rows) * (means[0] - means[1]) ** 2
            if gain > best[0] * (1 + 1e-9) + 1e-12:
                best = (gain, code, (low + high) / 2)
    if depth == 0 or best[1] is None:
        return rows
    gain, code, threshold = best
    sides = [r for r in rows if codes[r, code] <= threshold], [r for r in rows if codes[r, code] > threshold]
    return gain, code, threshold, *(slow_tree(codes, residuals, side, depth - 1) for side in sides)


def slow_leaves(tree, importance):
    """Leaves of a tree; the gains of its splits are added to the codes' importance."""
    if isinstance(tree, list):
        return [tree]
    gain, code, _, left, right = tree
    importance[code] += gain
    return slow_leaves(left, importance) + slow_leaves(right, importance)


def slow_boosting(codes, classes, size, stages, depth=3, rate=0.1):
    """Importance of each code and probabilities [rows, size] after `stages` of friedman2001's algorithm 6."""
    n = len(codes)
    scores = [[math.log(np.mean(classes == k)) for k in range(size)] for _ in range(n)]
    importance = np.zeros(codes.shape[1])
    for _ in range(stages):
        sums = [sum(math.exp(f) for f in row) for row in scores]
        p = [[math.exp(f) / total for f in row] for row, total in zip(scores, sums, strict=True)]
        for k in range(size):
            residuals = [float(classes[i] == k) - p[i][k] for i in range(n)]
            for leaf in slow_leaves(slow_tree(codes, residuals, list(range(n)), depth), importance):
                curvature = sum(p[i][k] * (1 - p[i][k]) for i in leaf)
                step = (size - 1) / size * sum(residuals[i] for i in leaf) / curvature
                for i in leaf:
                    scores[i][k] += rate * step
    p = [[math.exp(f) / sum(math.exp(g) for g in row) for f in row] for row in scores]
    return importance / importance.sum(), np.array(p)
