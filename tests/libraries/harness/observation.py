"""Runs a program, observed or not, and reads its spans from the local trace store.

A program is a Python file that prints its result as one line of JSON. It does not know whether it is observed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import from_json_line

LAUNCHER = """
import runpy, sys
sys.argv.pop(0)
if sys.argv.pop(0) == "observed":
    import ckpt_observe.auto
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Observation:
    """A state directory, and the programs that run observed in it."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self.directory = directory
        self.programs = programs
        self.environment = {
            **os.environ,
            "CKPT_OBSERVE_DIR": str(directory / "state"),
            "CKPT_OBSERVE_PAGES_DIR": str(directory / "pages"),
            "CKPT_OBSERVE_EXPORTERS": "local",
            "LANGSMITH_TRACING": "false",  # the program must not look for a server
            "PYTHONPATH": os.pathsep.join([str(programs), os.environ.get("PYTHONPATH", "")]),
        }

    def run(self, program, *arguments, observed=True, status=0, **variables):
        """Run a program to its end and return its result. What it wrote to stderr is in the report of a failed test."""
        command = [sys.executable, "-c", LAUNCHER, "observed" if observed else "bare", str(self.programs / program), *map(str, arguments)]
        process = self._run(command, **variables)
        print(process.stderr, file=sys.stderr)
        assert process.returncode == status, process.stderr
        lines = process.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    def run_example(self, program):
        """Run an example, which turns observation on itself, as a user would."""
        process = self._run([sys.executable, str(program)])
        assert process.returncode == 0, process.stderr

    def spans(self):
        """All spans of the programs that have ended. What a dead program left behind is delivered first."""
        process = self._run([sys.executable, "-m", "ckpt_observe", "traces", "--json", "--limit", "100000"])
        assert process.returncode == 0, process.stderr
        return Spans(from_json_line(line) for line in process.stdout.splitlines())

    def explain(self, trace):
        """The explanations of a trace, as `why --json` prints them."""
        process = self._run([sys.executable, "-m", "ckpt_observe", "why", trace, "--json"])
        assert process.returncode == 0, process.stderr
        return [json.loads(line) for line in process.stdout.splitlines()]

    def _run(self, command, **variables):
        environment = {**self.environment, **{name: str(value) for name, value in variables.items()}}
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.directory, timeout=300, check=False)


class Spans(list):
    """Spans, and questions about them."""

    def operations(self, *operations, **attributes):
        """The spans of these operations, or of all operations, whose attributes `checkpoint.NAME` have these values."""
        expected = {f"checkpoint.{name}": value for name, value in attributes.items()}
        return [
            span
            for span in self
            if names.OPERATION in span.attributes
            and (not operations or span.attributes[names.OPERATION] in operations)
            and expected.items() <= span.attributes.items()
        ]

    def operation(self, *operations, **attributes):
        """The only span that matches."""
        [span] = self.operations(*operations, **attributes)
        return span

    def tasks(self):
        return [span for span in self if names.OPERATION not in span.attributes and names.PHASE not in span.attributes]

    def roots(self):
        return [span for span in self if not span.parent_span_id]

    def phases(self, operation):
        """The phases of an operation, with nested ones."""
        phases = [span for span in self if span.parent_span_id == operation.span_id and names.PHASE in span.attributes]
        return [span for phase in phases for span in (phase, *self.phases(phase))]

    def phase_names(self, operation):
        return {phase.attributes[names.PHASE] for phase in self.phases(operation)}

    def check_traces(self):
        """Every trace has one root, every parent is in its trace, no span is there twice, and no operation is within another."""
        by_id = {span.span_id: span for span in self}
        assert len(by_id) == len(self), "a span was delivered twice"
        nested = [span for span in self if span.parent_span_id]
        assert [span.name for span in nested if span.parent_span_id not in by_id] == [], "orphans"
        assert [span.name for span in nested if by_id[span.parent_span_id].trace_id != span.trace_id] == []
        assert sorted(span.trace_id for span in self.roots()) == sorted({span.trace_id for span in self}), "a trace has several roots"
        above = [by_id[span.parent_span_id] for span in self.operations() if span.parent_span_id]
        assert [span.name for span in above if span not in self.tasks()] == [], "an operation is recorded within another"
