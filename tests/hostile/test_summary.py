"""The line at the end of the tests that counts hostile cases and the tests of them that failed."""

from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from tests.conftest import pytest_terminal_summary
from tests.hostile import mutations


def report(name, failed=False, when="call", cases=0):
    properties = [("hostile cases", cases)] if cases else []
    outcome = "failed" if failed else "passed"
    return pytest.TestReport(name, (name, 1, name), {}, outcome, None, when, user_properties=properties)


def summarise(*reports):
    lines = []
    pytest_terminal_summary(SimpleNamespace(stats={"any": list(reports)}, write_line=lines.append))
    return lines


def test_a_failure_counts_in_every_phase_and_once():
    kept = report("tests/hostile/test_files.py::kept", cases=1200)
    broken = report("tests/hostile/test_files.py::broken", failed=True, cases=7)
    unready = report("tests/hostile/test_commands.py::unready", failed=True, when="setup")
    untidy = report("tests/hostile/test_files.py::broken", failed=True, when="teardown", cases=7)
    other = report("tests/test_api.py::other", failed=True)
    assert summarise(kept, broken, unready, untidy, other) == ["1,207 hostile cases, 2 tests of them failed"]
    assert summarise(other) == []


def test_a_failing_example_is_counted_with_those_before_it():
    recorded = {}

    def attempt(number):
        assert number != 3, "the example that fails"

    with pytest.raises(AssertionError, match="example that fails"):
        mutations.try_examples(st.integers(0, 3), 100, attempt, recorded.__setitem__)
    assert 1 <= recorded["hostile cases"] < 100
