"""No environment variable and no platform makes `import ckpt_observe.auto`, `ckpt-observe run` or an operation fail.

Each environment is tried in a process of its own, forked from one that has imported the libraries, which is ten times faster than to start
it. Other platforms are imitated: `sys.platform` is changed, and what they lack is removed. Nothing here ran on macOS or Windows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

DIGITS = "7" * 5000
NOT_UTF8 = "\udcff"
NO_HOME = {"HOME": None, "XDG_STATE_HOME": None, "CKPT_OBSERVE_DIR": None}
METRICS = {"CKPT_OBSERVE_EXPORTERS": "prometheus,local", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}
OTLP_METRICS = METRICS | {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:9/v1/metrics"}
LAMINAR = {"LMNR_PROJECT_API_KEY": "key", "LMNR_BASE_URL": "http://127.0.0.1:9"}
OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}

INVALID = {
    "directory of an unknown user": {"CKPT_OBSERVE_DIR": "~nosuchuser"},
    "pages of an unknown user": {"CKPT_OBSERVE_PAGES_DIR": "~nosuchuser/pages"},
    "XDG directory of an unknown user": {"CKPT_OBSERVE_DIR": None, "XDG_STATE_HOME": "~nosuchuser"},
    "relative directory in a removed one": {"CKPT_OBSERVE_DIR": "state", "cwd": "removed"},
    "relative pages in a removed one": {"CKPT_OBSERVE_PAGES_DIR": "pages", "cwd": "removed"},
    "directory that is not UTF-8": {"CKPT_OBSERVE_DIR": f"/tmp/{NOT_UTF8}"},
    "disk limit": {"CKPT_OBSERVE_DISK_LIMIT": DIGITS},
    "sampling ratio": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": DIGITS},
    "exporter that is not UTF-8": {"CKPT_OBSERVE_EXPORTERS": NOT_UTF8},
}
"""Wrong settings: the program runs unobserved, and one line of the log names the variable."""

ONE_INVALID = {
    "endpoint without bracket": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"},
    "endpoint of metrics without bracket": METRICS | {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://[::1"},
    "endpoint with a large port": {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://localhost:{DIGITS}"},
    "endpoint with a port that is no number": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:http"},
    "gRPC endpoint without bracket": {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "[::1"},
    "timeout": OTLP | {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
    "Laminar without bracket": LAMINAR | {"LMNR_BASE_URL": "http://[::1"},
    "Laminar with a large port": LAMINAR | {"LMNR_HTTP_PORT": DIGITS},
    "Laminar with a port of other digits": LAMINAR | {"LMNR_HTTP_PORT": "\u00b2"},
    "port": METRICS | {"OTEL_EXPORTER_PROMETHEUS_PORT": DIGITS},
    "Pushgateway without bracket": METRICS | {"CKPT_OBSERVE_METRICS_PUSHGATEWAY": "http://[::1"},
    "export interval": OTLP_METRICS | {"OTEL_METRIC_EXPORT_INTERVAL": "soon"},
    "long export interval": OTLP_METRICS | {"OTEL_METRIC_EXPORT_INTERVAL": DIGITS},
}
"""A wrong setting of one exporter: the other one works, and one line of the log names the variable."""

UNUSUAL = {
    "no home directory": NO_HOME,
    "removed working directory": {"cwd": "removed"},
    "relative entry of sys.path in a removed directory": {"cwd": "removed", "PYTHONPATH": "lib"},
    "Laminar without bracket, not used": OTLP_METRICS | {"LMNR_BASE_URL": "http://[::1"},
    "long timeout": OTLP | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1e300"},
    "host name that cannot be encoded": METRICS | {"OTEL_EXPORTER_PROMETHEUS_HOST": "x" * 300, "CKPT_OBSERVE_METRICS_TOKEN": "t"},
    "service that is not UTF-8": {"OTEL_SERVICE_NAME": NOT_UTF8},
    "resource that is not UTF-8": {"OTEL_RESOURCE_ATTRIBUTES": f"{NOT_UTF8}={NOT_UTF8},service.name=%ff"},
    "trace that is not UTF-8": {"TRACEPARENT": NOT_UTF8},
    "long values": {"OTEL_SERVICE_NAME": DIGITS, "TRACEPARENT": DIGITS, "OTEL_RESOURCE_ATTRIBUTES": f"a={DIGITS}"},
    "certificate that does not exist": OTLP | {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nosuchfile"},
    "TLS file with a long name": METRICS | {"CKPT_OBSERVE_METRICS_TLS": "x" * 5000},
    "unknown OpenTelemetry context": {"OTEL_PYTHON_CONTEXT": "nosuch"},
    "macOS": {"platform": "darwin"},
}
"""Unusual, but usable: the operation is recorded."""

PROGRAM = r"""
import json, os, pwd, sys, tempfile, traceback
import asyncio, logging, mmap, signal, sqlite3, ssl, uuid  # noqa: of the standard library, before the platform changes
import msgspec, wrapt, opentelemetry.trace
import ckpt_observe.cli.doctor.command, ckpt_observe.cli.run, ckpt_observe.scopes, ckpt_observe.wiring
from ckpt_observe.core import Checkpointer

CASES, EXAMINED, ROOT = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

def lacks(*names):
    for name in names:
        if hasattr(os, name):
            delattr(os, name)

def become(platform):
    sys.platform = platform
    lacks("posix_fallocate", "O_TMPFILE", "sched_getaffinity")
    sys.modules["resource"] = None  # lacks RUSAGE_THREAD on macOS; does not exist on Windows
    from ckpt_observe.journal import directory, locations
    real_path = locations.Path
    locations.Path = directory.Path = lambda path: real_path(str(path).replace("/proc/", "/nosuch/"))
    locations.SHARED_MEMORY = real_path("/nosuch/shm")
    if platform == "win32":
        lacks("geteuid", "getuid", "statvfs", "fstatvfs", "pwrite", "register_at_fork", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "fork")
        sys.modules.update(dict.fromkeys(("fcntl", "pwd", "grp")))
        import types
        for name in [name for name in sys.modules if name.split(".")[0] == "ckpt_observe"]:
            del sys.modules[name]  # import everything as on that platform
        sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, LK_UNLCK=0, locking=lambda *_: None)

def prepare(name, variables):
    directory = os.path.join(ROOT, name)
    os.makedirs(os.path.join(directory, "temporary"))
    os.environ.update(CKPT_OBSERVE_DIR=directory + "/state", CKPT_OBSERVE_PAGES_DIR=directory + "/pages", TMPDIR=directory + "/temporary")
    if variables.pop("cwd", None):
        os.mkdir(directory + "/cwd")
        os.chdir(directory + "/cwd")
        os.rmdir(directory + "/cwd")
    platform = variables.pop("platform", None)
    if path := variables.pop("PYTHONPATH", None):
        sys.path.insert(0, path)
    for variable, value in variables.items():
        os.environ.pop(variable, None) if value is None else os.environ.__setitem__(variable, value)
    if "HOME" not in os.environ:
        def unknown(_): raise KeyError("uid not found")
        pwd.getpwuid = unknown
    if platform:
        if platform == "darwin":
            os.environ.pop("CKPT_OBSERVE_PAGES_DIR")
        become(platform)

def operate():
    import ckpt_observe.auto
    import ckpt_observe
    checkpointer = Checkpointer("memory://")
    with ckpt_observe.task("task"), ckpt_observe.checkpoint("save", id="a") as operation:
        checkpointer.save("run", {"a": 1})
    assert checkpointer.load("run") == {"a": 1}
    if ckpt_observe.api._watch is not None:
        ckpt_observe.api._watch.flush(0.0)
        ckpt_observe.api._watch.close(0.0)
    print("recorded" if operation.span_id else "not recorded", flush=True)
    return 0

def command(*arguments):
    from ckpt_observe.cli.main import main
    return main(arguments)

ACTIONS = {
    "operation": operate,
    "run": lambda: command("run", "--", "true"),
    "doctor": lambda: command("doctor"),
}
results = {}
for number, (name, variables) in enumerate(CASES.items()):
    for action in ACTIONS if name in EXAMINED else ("operation", "run"):
        output = os.path.join(ROOT, f"output-{number}-{action}")
        child = os.fork()
        if not child:
            code = 99
            try:
                fd = os.open(output, os.O_RDWR | os.O_CREAT)
                os.dup2(fd, 1)
                os.dup2(fd, 2)
                prepare(f"{number}-{action}", dict(variables))
                code = ACTIONS[action]()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(output, errors="replace") as file:
            results[f"{name}/{action}"] = status, file.read()
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Exit code and output of each action in each environment."""
    cases = json.dumps(INVALID | ONE_INVALID | UNUSUAL | {"Windows": {"platform": "win32"}})
    examined = json.dumps([*INVALID, *ONE_INVALID, "no home directory", "macOS", "Windows"])
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("CKPT_OBSERVE_", "OTEL_", "LMNR_"))}
    program = [sys.executable, "-c", PROGRAM, cases, examined, str(tmp_path_factory.mktemp("environments"))]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def check(results, case, action):
    code, output = results[f"{case}/{action}"]
    assert "Traceback" not in output, output
    assert "Internal error" not in output, output
    return code, output


@pytest.mark.parametrize("case", INVALID | ONE_INVALID)
def test_wrong_setting(results, case):
    """The program runs, and the log and the doctor name the variable. A wrong setting of one exporter leaves out only that one."""
    variable = next(name for name in reversed((INVALID | ONE_INVALID)[case]) if name != "cwd")
    code, output = check(results, case, "operation")
    assert (code, output.splitlines()[-1]) == (0, "recorded" if case in ONE_INVALID else "not recorded")
    assert f"is not used: {variable}" in output if case in ONE_INVALID else f"Checkpoints are not observed: {variable}" in output
    assert len(output) < 1000
    assert check(results, case, "run") == (0, "")
    code, output = check(results, case, "doctor")
    assert (code, variable in output) == (3, True), output


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_environment(results, case):
    """The operation is recorded."""
    code, output = check(results, case, "operation")
    assert (code, output.splitlines()[-1]) == (0, "recorded"), output
    assert check(results, case, "run") == (0, "")


def test_no_home_directory(results):
    """The state is in a temporary directory, and the doctor says so."""
    assert "no home directory" in check(results, "no home directory", "doctor")[1]


def test_macos(results):
    """Pages are plain files, and the doctor explains it."""
    output = check(results, "macOS", "doctor")[1]
    assert "plain files" in output
    assert "written with pwrite" in output


def test_windows(results):
    """Nothing is observed. One warning says so, and the doctor explains it."""
    code, output = check(results, "Windows", "operation")
    assert (code, output.splitlines()[1:]) == (0, ["not recorded"]), output
    assert "Checkpoints are not observed: Windows" in output
    code, output = check(results, "Windows", "doctor")
    assert (code, "Windows" in output) == (3, True), output
