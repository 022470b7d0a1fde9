"""Benchmarks. Run one with `python -m benchmarks.<name>`; it prints ratios measured in a single run."""
