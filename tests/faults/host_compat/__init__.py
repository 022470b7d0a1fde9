"""Compares programs with and without observation: `python -m tests.faults.host_compat`."""
