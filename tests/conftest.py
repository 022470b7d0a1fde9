"""Fixtures and settings for all tests."""

from __future__ import annotations

import pytest

# Contracts live in the package, where pytest does not explain assertions unless asked to.
pytest.register_assert_rewrite("ckpt_observe.testing")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fail-on-skip", action="store_true", help="a skipped test is a failure: everything it needs was installed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--fail-on-skip"):
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
