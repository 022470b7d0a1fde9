"""A program that records nothing never does so in silence."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from ckpt_observe import libraries

SAVE = "from ckpt_observe.core import Checkpointer; Checkpointer('memory://').save('run', {})"


PACKAGE = """
import os
def load(filename): ...
if "RENAMED" not in os.environ:
    def dump(value, filename): ...
"""


@pytest.fixture
def packages(tmp_path):
    """A directory with importable packages that are named like checkpoint libraries."""
    for name in ("haystack", "joblib", "numpy"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(PACKAGE)
    return str(tmp_path / "packages")


@pytest.fixture
def summary(command, packages):
    """Run Python code under `ckpt-observe run`, and return the lines of its summary."""

    def run(code, *options, **variables):
        done = command("run", *options, "--", sys.executable, "-c", code, PYTHONPATH=packages, **variables)
        assert (done.returncode, done.stdout) == (0, "")
        return [line.removeprefix("ckpt-observe: ") for line in done.stderr.splitlines() if line.startswith("ckpt-observe: ")]

    return run


def test_command_of_the_summary_can_be_pasted(command, tmp_path):
    """The directory that the summary names is quoted for the shell."""
    state = tmp_path / "my state"
    done = command("run", "--dir", str(state), "--", sys.executable, "-c", SAVE)
    shown = done.stderr.rstrip().rpartition("ckpt-observe ")[2]
    assert shlex.split(shown) == ["traces", "--last", "--dir", str(state)]


def test_launcher_counts_the_children_that_record(summary, tmp_path):
    """A launcher that saves nothing itself says that its children recorded operations, also those that were killed."""
    state = tmp_path / "state"
    children = f"""
import subprocess, sys
import haystack
for end in ("", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"):
    subprocess.run([sys.executable, "-c", {SAVE!r} + chr(10) + end])
subprocess.run([sys.executable, "-c", ""])
"""
    lines = summary(children)
    next_step = f"show the newest trace with: ckpt-observe traces --last --dir {state}"
    assert lines[0] == f"operations and tasks recorded by this process: 0; child processes that recorded some: 2; {next_step}"
    assert not list((state / "run-children").iterdir())
    assert not (state / "unobserved").exists()


NOTHING = "this process has recorded no checkpoint operation"
HAYSTACK = "Haystack is not instrumented: mark its saves and loads with ckpt_observe.checkpoint()"
NOT_SAMPLED = (
    "no new trace is sampled (OTEL_TRACES_SAMPLER=always_off); operations of unsampled traces are not recorded; "
    "to count them, add the exporter prometheus"
)
JOBLIB = "joblib is switched off: set CKPT_OBSERVE_LIBRARIES=default,+joblib"


@pytest.mark.parametrize(
    ("code", "variables", "expected"),
    [
        ("import haystack, joblib", {}, [NOTHING, JOBLIB, HAYSTACK]),
        ("import numpy, joblib", {}, [NOTHING, JOBLIB]),  # nearly every program imports NumPy
        ("import joblib", {"CKPT_OBSERVE_LIBRARIES": "joblib"}, [NOTHING, "joblib is instrumented, but has made none"]),
        (
            "import joblib",
            {"CKPT_OBSERVE_LIBRARIES": "joblib", "RENAMED": "1"},
            [
                NOTHING,
                "joblib is not fully instrumented, because callables were renamed in this version: for their names run: ckpt-observe doctor",
            ],
        ),
        ("import ckpt_observe.core", {}, [NOTHING, "ckpt_observe.core is instrumented, but has made none"]),
        (
            "import ckpt_observe.core",
            {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "reference"},
            [NOTHING, "ckpt_observe.core is switched off: remove reference from OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"],
        ),
        (
            SAVE,
            {"OTEL_TRACES_SAMPLER": "always_off"},
            [
                NOTHING,
                NOT_SAMPLED,
            ],
        ),
    ],
    ids=["not observed", "ubiquitous", "selected", "renamed", "nothing saved", "switched off", "not sampled"],
)
def test_run_says_why_nothing_was_recorded(summary, code, variables, expected):
    """After a program without a recorded operation come the libraries that it imported, their states, and the next step."""
    assert summary(code, **variables) == expected


def test_run_says_that_failures_are_exported(summary):
    """Operations that are recorded because they may fail are not called unrecorded."""
    [recorded, sampling] = summary(SAVE, OTEL_TRACES_SAMPLER="always_off", CKPT_OBSERVE_UNSAMPLED_FAILURES="true")
    assert recorded.startswith("operations and tasks recorded by this process: ")
    assert "; of the operations of unsampled traces, only those that fail are exported; " in sampling


def test_run_without_a_library(summary):
    """A program that imports no known library is told how to mark its own code."""
    nothing, advice = summary("pass")
    assert nothing == NOTHING
    assert "ckpt_observe.checkpoint()" in advice


@pytest.mark.parametrize(
    "code",
    [
        "import ckpt_observe; watch = ckpt_observe.observe(); {save}; watch.close(); {save}",
        "import ckpt_observe; watch = ckpt_observe.observe(service='trainer'); {save}; watch.close()",
    ],
    ids=["same watch", "other settings"],
)
def test_run_prints_the_summary_of_a_program_that_closes_its_watch(summary, code):
    """A program that stops observing before it ends has a summary of what was recorded until then."""
    [recorded] = summary(code.format(save=SAVE))
    assert recorded.startswith("operations and tasks recorded by this process: 1; ")


def test_run_reports_nothing_of_a_child_that_closes_its_watch(summary):
    """Only the program itself prints a summary, not its forked children."""
    fork = "import os, ckpt_observe; watch = ckpt_observe.observe(); pid = os.fork()"
    lines = summary(f"{fork}; {SAVE}; pid or watch.close(); pid and os.waitpid(pid, 0)")
    assert len(lines) == 1


def test_run_says_where_to_look(summary, tmp_path):
    """After a program with recorded operations comes the command that shows them, and libraries that are not observed."""
    [recorded, other] = summary(f"import haystack; {SAVE}")
    assert re.fullmatch(
        f"operations and tasks recorded by this process: [1-9]; show .* ckpt-observe traces --last --dir {tmp_path}/state", recorded
    )
    assert other == HAYSTACK
    [recorded] = summary(SAVE, "--exporters", "console", CKPT_OBSERVE_DIR=str(tmp_path / "other"))[-1:]
    assert recorded.endswith("they are sent to: console")


def test_child_processes_print_no_summary(summary):
    """One run, one summary, whatever processes the program starts."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import ckpt_observe.core'], check=True)"
    assert summary(code).count(NOTHING) == 1


@pytest.mark.parametrize("stream", ["sys.stderr.close()", "sys.stderr = None", "import os; os.close(2)"])
def test_program_without_standard_error(command, stream):
    """A program that has closed standard error ends as usual."""
    done = command("run", "--", sys.executable, "-c", f"import sys; {stream}")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"CKPT_OBSERVE_ENABLED": "false"}, "nothing is recorded, because CKPT_OBSERVE_ENABLED turns recording off"),
        ({"CKPT_OBSERVE_EXPORTERS": "none"}, "nothing is recorded, because CKPT_OBSERVE_EXPORTERS turns recording off"),
    ],
)
def test_run_with_recording_turned_off(summary, variables, words):
    """If a setting turns recording off, the command names it."""
    assert summary(SAVE, **variables) == [words]


@pytest.mark.parametrize(
    ("options", "named"), [(["-I"], "-I"), (["-B", "-sE"], "-sE"), (["-S"], "-S"), (["-X", "dev"], None), (["-W", "ignore"], None)]
)
def test_run_with_an_isolated_python(command, options, named):
    """A Python that does not import us is reported, because nothing else would say so. Other options are not taken for it."""
    done = command("run", "--", sys.executable, *options, "-c", "import sys; sys.argv.append('-I')")
    assert ("turns sitecustomize off" in done.stderr) == (named is not None)
    assert f"option {named} " in done.stderr or named is None


def python(code, tmp_path, packages, **variables):
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "PYTHONPATH": packages, "OTEL_SERVICE_NAME": "agent", **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True, cwd=tmp_path).stderr


def test_program_logs_one_line(tmp_path, packages):
    """Inside a program there is one log line, and only if a library that it imported is not observed and nothing was recorded."""
    assert (
        python("import ckpt_observe.auto, haystack, joblib", tmp_path, packages)
        == f"No checkpoint operation was recorded. {JOBLIB}. {HAYSTACK}.\n"
    )
    assert python(f"import ckpt_observe.auto, haystack; {SAVE}", tmp_path, packages) == ""
    assert python("import ckpt_observe.auto, ckpt_observe.core", tmp_path, packages) == ""
    assert python("import haystack", tmp_path, packages) == ""


def test_forked_children_log_nothing(tmp_path, packages):
    """The program logs its line once, and not once more for each worker that it forks."""
    code = "import os, sys, ckpt_observe.auto, haystack\nif not os.fork(): sys.exit()\nos.wait()"
    assert python(code, tmp_path, packages).count("No checkpoint operation was recorded") == 1


def test_renamed_callable_is_logged_when_its_library_is_imported(tmp_path, packages):
    """The version of a library that lacks a callable is reported at once, and not again at exit."""
    line = python("import ckpt_observe.auto, joblib", tmp_path, packages, CKPT_OBSERVE_LIBRARIES="joblib", RENAMED="1")
    assert re.fullmatch(r"joblib: joblib\.dump is not observed: joblib has no dump .*\n", line)


def test_traces_and_doctor_mention_the_program_until_it_records(command, tmp_path, packages):
    """What recorded nothing is not in a list of traces, so both commands mention it, until a run records something."""
    python("import ckpt_observe.auto, haystack", tmp_path, packages)
    assert f"agent has recorded no operation: {HAYSTACK}" in command("traces").stderr
    findings = [json.loads(line) for line in command("doctor", "--json").stdout.splitlines()]
    [finding] = [finding for finding in findings if finding["subject"] == "program agent"]
    assert (finding["state"], HAYSTACK in finding["detail"]) == ("note", True)
    python(f"import ckpt_observe.auto, haystack; {SAVE}", tmp_path, packages)
    assert command("traces").stderr == ""
    [recorded] = [line for line in command("doctor").stdout.splitlines() if " recorded " in line]
    assert re.search("[1-9] operations? in 1 trace,", recorded)


def test_doctor_lists_installed_libraries_without_an_instrumentor(command, packages):
    """A well-known library that is installed and not observed is a note."""
    done = command("doctor", PYTHONPATH=packages)
    assert done.returncode == 0
    assert re.search("note +library Haystack +installed, but not instrumented", done.stdout)


@pytest.mark.parametrize("module", ["torch", "torch.serialization", "torch.distributed.checkpoint"])
def test_what_is_instrumented_is_not_called_uninstrumented(monkeypatch, module):
    """The table of other libraries does not overrule the table of observed ones."""
    row = libraries.Library("PyTorch", "package.module:Class", module)
    # A copy: an entry that is removed and put back would be the last one, and pages are generated in the order of the table.
    other_rows = {name: library for name, library in libraries.LIBRARIES.items() if not library.module.startswith("torch")}
    monkeypatch.setattr(libraries, "LIBRARIES", other_rows)
    assert "torch" in libraries.uninstrumented_libraries()
    other_rows["pytorch-files"] = row
    assert "torch" not in libraries.uninstrumented_libraries()
    assert "xgboost" in libraries.uninstrumented_libraries() or "xgboost" in libraries.LIBRARIES


CONFIGURED_IN_CODE = "import ckpt_observe; ckpt_observe.observe(exporters=['console'], service='code', dir='elsewhere')"


def test_options_of_run_override_the_program(command, tmp_path):
    """`--exporters`, `--service` and `--dir` win over arguments of `observe()` in the program, which win over variables."""
    options = ("--exporters", "local", "--service", "option", "--dir", str(tmp_path / "option"))
    done = command("run", *options, "--", sys.executable, "-c", f"{CONFIGURED_IN_CODE}; {SAVE}")
    assert done.returncode == 0, done.stderr
    assert "ignored" not in done.stderr
    [service] = {
        json.loads(line)["resource"]["service.name"]
        for line in command("traces", "--json", "--dir", str(tmp_path / "option")).stdout.splitlines()
    }
    assert service == "option"
    assert not (tmp_path / "elsewhere").exists()


def test_program_overrides_variables_with_a_warning(command, tmp_path):
    """Without options, the arguments of the program win, and the ignored variables are named."""
    patient = "from ckpt_observe import api; api.EXIT_TIMEOUT = 120.0"  # it prints its save, however busy the machine is
    code = f"{CONFIGURED_IN_CODE}; {patient}; {SAVE}"
    done = command("run", "--", sys.executable, "-c", code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is ignored, because the program calls observe(exporters=...) without otlp." in done.stderr
    assert "CKPT_OBSERVE_DIR is ignored" in done.stderr
    assert "checkpoint.save" in done.stderr
    assert (tmp_path / "elsewhere").exists()


def test_misspelt_setting_is_logged_once(command):
    """`run` leaves the warning about a variable to the program that it starts."""
    done = command("run", "--service", "test", "--", sys.executable, "-c", SAVE, CKPT_OBSERVE_EXPORTER="local")
    assert done.stderr.count("'CKPT_OBSERVE_EXPORTER' is not a setting") == 1
    assert "did you mean CKPT_OBSERVE_EXPORTERS?" in done.stderr
