"""A result is computed once for equal arrays, and the oldest ones are dropped."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from unbraid.metrics.content_cache import ContentCache
from unbraid.metrics.intervention import fixed_factor_batches
from unbraid.metrics.intervention.fixed_factor_batches import read_population


def test_equal_arrays_share_a_result_and_others_do_not():
    cache, calls = ContentCache[int](entries=2), []
    ask = lambda *arrays: cache.get(arrays, lambda: calls.append(arrays) or len(calls))  # noqa: E731
    row = np.arange(4)
    assert ask(row) == ask(row.copy()) == 1
    assert ask(row.reshape(2, 2)) == 2
    assert ask(row.astype(np.int32)) == 3  # drops the first
    assert ask(row) == 4
    assert ask(row.astype(np.int32)) == 3


def test_a_result_that_is_used_stays():
    cache = ContentCache[list](entries=2)
    first, second, third = (np.array([k]) for k in range(3))
    kept = cache.get([first], list)
    cache.get([second], list)
    assert cache.get([first], list) is kept
    cache.get([third], list)
    assert cache.get([first], list) is kept


def test_threads_share_a_cache():
    cache, rows = ContentCache[int](entries=1), [np.array([k]) for k in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda k: cache.get([rows[k % 2]], lambda: k % 2), range(4_000)))
    finally:
        sys.setswitchinterval(before)
    assert found == [k % 2 for k in range(4_000)]


def test_models_on_the_same_factors_share_a_population(monkeypatch):
    built, read = [], fixed_factor_batches.read_fixable_factors
    monkeypatch.setattr(
        fixed_factor_batches, "read_fixable_factors", lambda *given: built.append(given) or read(*given)
    )
    monkeypatch.setattr(fixed_factor_batches, "_POPULATIONS", ContentCache(entries=2))
    factors = np.random.default_rng(0).integers(0, 3, (60, 2))
    one, two = (read_population("FactorVAE", factors.copy(), 60, ["a", "b"]) for _ in range(2))
    assert one is two
    assert read_population("FactorVAE", factors, 60, ["b", "a"]).labels.names == ("b", "a")
    words = np.array(["cube", "ball"], dtype=object)[factors % 2]
    assert read_population("FactorVAE", words, 60).labels.sizes == (2, 2)
    assert len(built) == 3
