"""The long tier of the fault tests: `python -m tests.faults.soak --hours N [--seed S]`."""
