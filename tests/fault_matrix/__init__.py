"""Faults that are injected for real, with what the recorded operation must say about each.

`table.py` has the expectations, `test_fault_matrix.py` injects every fault and compares. `python -m tests.fault_matrix > docs/faults.md`
writes the page.
"""
