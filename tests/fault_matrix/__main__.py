"""Prints the page: `python -m tests.fault_matrix > docs/faults.md`."""

from tests.fault_matrix.page import render

print(render(), end="")
