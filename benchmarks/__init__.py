"""Measurements. Each module runs with `python -m benchmarks.<name>` and prints ratios taken in one run."""
