"""Fixtures and settings for all tests."""

from __future__ import annotations

import pytest

# Contracts live in the package, where pytest does not explain assertions unless asked to.
pytest.register_assert_rewrite("ckpt_observe.testing")
