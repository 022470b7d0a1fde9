"""A host program sees no difference if it is observed. The long tier, `python -m tests.faults.host_compat`, also runs test suites."""

from __future__ import annotations

import pytest

from tests.faults.host_compat.left_behind import differences, is_recorded
from tests.faults.host_compat.observers import ALONE, HARM, OBSERVED, Observer, harmful
from tests.faults.host_compat.suites import Suite, compare

pytestmark = pytest.mark.faults

TESTS = """
import os, unittest
class Tests(unittest.TestCase):
    def test_same(self):
        pass
    def test_environment(self):
        self.assertNotIn("OF_THE_OBSERVER", os.environ)
    @unittest.skip("always")
    def test_skipped(self):
        pass
    def test_failing(self):
        self.fail()
"""


@pytest.mark.parametrize("saves", [0, 50])
def test_nothing_is_left_behind(tmp_path, saves):
    """Environment, descriptors, threads, random numbers and signal handlers are those of an unobserved run; so are output and exit code."""
    assert differences(ALONE, OBSERVED, tmp_path, saves) == []
    assert is_recorded(tmp_path, saves)


@pytest.mark.parametrize("harm", HARM)
def test_control_of_what_is_left_behind(tmp_path, harm):
    """Control: an observer that does harm is detected."""
    observer = harmful(harm, tmp_path / "observer")
    assert any(harm in line for line in differences(ALONE, observer, tmp_path / "run", 50))


@pytest.fixture
def suite(tmp_path):
    """A small test suite."""
    path = tmp_path / "test_small.py"
    path.write_text(TESTS)
    options = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    return Suite("small", lambda result_file, tests: ["-m", "pytest", "-q", *options, "--junit-xml", result_file, str(path)])


def test_suite_has_the_same_results(suite):
    """Observed, every test of a suite has the same result; one that fails anyway counts as the same."""
    result = compare(suite, ALONE, OBSERVED)
    assert (result.tests, result.failures, result.different) == (4, 1, [])


def test_control_of_suites(suite, tmp_path):
    """Control: an observer that changes the result of one test is detected, and so is one that breaks the whole suite."""
    result = compare(suite, ALONE, harmful("environment", tmp_path / "observer"))
    assert [line.partition(":")[0].rpartition(".")[2] for line in result.different] == ["test_environment"]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text("import os; os._exit(1)")
    assert compare(suite, ALONE, Observer("broken", directory=tmp_path / "broken")).different
