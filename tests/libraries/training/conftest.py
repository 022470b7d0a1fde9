"""Fixtures of the tests with training libraries, which share one environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["KERAS_BACKEND"] = "jax"  # read when Keras is imported; the example uses torch
