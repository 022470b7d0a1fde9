"""The import rules between packages. Importing the package has no side effects."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.semconv.attributes import ATTRIBUTES

PACKAGE = Path(ckpt_observe.__file__).parent
NAME = PACKAGE.name

ALLOWED_IMPORTS = {
    "errors": set(),
    "environment": set(),
    "span": set(),
    "exporter": {"span"},
    "semconv": set(),
    "tensor_summary": {"semconv"},
    "endpoints": {"environment", "errors"},
    "samplers": {"environment", "errors"},
    "span_limits": {"environment", "errors"},
    "libraries": {"environment"},
    "setting_source": {"environment"},
    "prometheus_settings": {"setting_source", "endpoints", "environment", "errors"},
    "config": {
        "setting_source",
        "prometheus_settings",
        "endpoints",
        "samplers",
        "span_limits",
        "libraries",
        "environment",
        "errors",
        "exporter",
    },
    "resource": {"config", "record", "semconv", "__version__"},
    "resource_detectors": {"config", "record", "semconv", "__version__"},
    "support": {"errors"},
    "core": {"errors"},
    "record": {"semconv", "errors", "config"},
    "journal": {"errors", "semconv"},
    "delivery": {"journal", "semconv", "config", "errors", "exporter", "span", "tensor_summary"},
    "tracestore": {"span", "errors", "semconv"},
    "metricstore": {"journal", "span", "errors", "semconv"},
    "query": {"tracestore", "journal", "delivery", "config", "semconv", "errors", "span"},
    "alerts": {"semconv", "errors"},
    "exporters": {
        "exporter",
        "semconv",
        "config",
        "prometheus_settings",
        "endpoints",
        "errors",
        "span",
        "span_limits",
        "tracestore",
        "metricstore",
        "__version__",
    },
    "instrument": {"record", "semconv", "errors", "libraries", "tensor_summary"},
    "dashboards": {"semconv"},
    "readers": {"core", "errors"},
    "tuning": {"core", "query"},
    "explain": {"query", "semconv"},
    "pictures": {"explain", "query", "semconv"},
    "viewer": {"query", "libraries", "semconv", "errors"},
}
"""What each package or top-level module may import. Those in UNRESTRICTED may import everything except testing."""

STANDALONE = {"errors", "environment", "exporter", "span", "semconv", "support", "tensor_summary"}
for package in ALLOWED_IMPORTS.keys() - STANDALONE:
    ALLOWED_IMPORTS[package].add("support")

UNRESTRICTED = {
    "api",
    "auto",
    "exit_report",
    "wiring",
    "exporter_selection",
    "otel_instrumentor",
    "scopes",
    "cli",
    "testing",
    "__init__",
    "__main__",
}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Return every imported module, and whether the import is at module level."""
    imported = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(child) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for child in ast.walk(node)}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        imported += [(name, id(node) not in inner) for name in names]
    return imported


def test_every_package_has_rules():
    """A new package must be added to the rules."""
    assert {package_of(path) for path in modules()} <= set(ALLOWED_IMPORTS) | UNRESTRICTED


@pytest.mark.parametrize("package", ALLOWED_IMPORTS)
def test_import_rules(package):
    """A package imports only what its rule allows, also inside functions."""
    allowed = ALLOWED_IMPORTS[package] | {package}
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in modules()
        if package_of(path) == package
        for name, _ in imports(path)
        if name.split(".")[0] == NAME and name.split(".")[1] not in allowed
    ]
    assert wrong == []


def test_nothing_imports_testing():
    """Only tests import `testing`."""
    assert [
        f"{path}: {name}"
        for path in modules()
        if package_of(path) != "testing"
        for name, _ in imports(path)
        if name.startswith(f"{NAME}.testing")
    ] == []


def test_semconv_stands_alone():
    """`semconv` imports nothing else of the package."""
    wrong = [
        name
        for path in modules()
        if package_of(path) == "semconv"
        for name, _ in imports(path)
        if name.startswith(NAME) and not name.startswith(f"{NAME}.semconv")
    ]
    assert wrong == []


def test_targets_are_imported_inside_functions():
    """An instrumentor imports its library inside functions. Module-level imports are limited to our own dependencies."""
    allowed = {*sys.stdlib_module_names, "wrapt", "opentelemetry", "msgspec", NAME}
    wrong = [
        f"{path.name}: {name}"
        for path in modules()
        if package_of(path) == "instrument"
        for name, top in imports(path)
        if top and name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_core_knows_no_telemetry():
    """The reference core imports nothing of OpenTelemetry, wrapt or Prometheus."""
    wrong = [
        name
        for path in modules()
        if package_of(path) == "core"
        for name, _ in imports(path)
        if name.split(".")[0] in ("opentelemetry", "wrapt", "prometheus_client")
    ]
    assert wrong == []


def test_names_come_from_the_registry():
    """Attribute names are literals in `semconv` only, so that they cannot be misspelt elsewhere."""
    wrong = []
    for path in modules():
        if package_of(path) in ("semconv", "testing"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            literal = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
            if literal and (node.value in ATTRIBUTES or node.value.startswith("checkpoint.")):
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {node.value}")
    assert wrong == []


PROBE = """
import os, sys, threading
before = dict(os.environ)
files = set(os.listdir("/proc/self/fd"))
opened = []

def audit(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        opened.append(arguments[0])
    elif event == "open" and arguments[1] is None and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        opened.append(arguments[0])
    elif event in ("os.mkdir", "socket.connect", "socket.bind", "subprocess.Popen", "os.fork"):
        opened.append(event)

sys.dont_write_bytecode = True
sys.addaudithook(audit)
import {module}
assert not opened, opened
assert set(os.listdir("/proc/self/fd")) <= files, os.listdir("/proc/self/fd")
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert dict(os.environ) == before
heavy = [name for name in {heavy} if name in sys.modules]
assert not heavy, heavy
from opentelemetry import metrics, trace
assert trace._TRACER_PROVIDER is None
assert not os.path.exists(sys.argv[1])
"""


HEAVY = {
    *("wrapt", "asyncio", "grpc", "prometheus_client", "lmnr", "torch", "requests"),
    *("google.protobuf", "sqlite3", "opentelemetry.sdk", "importlib.metadata", "msgspec", "multiprocessing"),
    *("ckpt_observe.instrument.instrumentor", "ckpt_observe.record.operation"),
}


@pytest.mark.parametrize("module", ["ckpt_observe", "ckpt_observe.auto"])
def test_importing_does_nothing(module, tmp_path, monkeypatch):
    """An import loads no heavy package and creates no thread, file, provider or variable, even with observation on."""
    state = tmp_path / "state"
    monkeypatch.setenv("CKPT_OBSERVE_DIR", str(state))
    command = [sys.executable, "-c", "import opentelemetry.trace, sys; print(*sys.modules)"]  # older versions import asyncio
    heavy = HEAVY.difference(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    probe = PROBE.replace("{module}", module).replace("{heavy}", repr(heavy))
    done = subprocess.run([sys.executable, "-c", probe, str(state)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_auto_patches(tmp_path):
    """`import ckpt_observe.auto` patches libraries that are imported later."""
    code = (
        "import ckpt_observe.auto\nfrom ckpt_observe.core import Checkpointer\n"
        "from ckpt_observe.instrument.patching import PatchedCallable\nassert isinstance(Checkpointer.__dict__['save'], PatchedCallable)"
    )
    environment = {"PATH": "", "CKPT_OBSERVE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_architecture_shows_the_same_rules():
    """The table of packages in ARCHITECTURE.md matches `ALLOWED_IMPORTS`, except for `support`, which a sentence below it covers."""
    page = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = re.search(r"^## Packages$.*?^\|[-|]+\|\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)[1]
    shown = {}
    for line in table.splitlines():
        packages, _, imported = line.strip("|").split(" | ")
        for package in re.findall(r"`([\w/.]+)`", packages):
            shown[package.rstrip("/").removesuffix(".py")] = set(re.findall(r"`(\w+)`", imported))
    existing = {package_of(path) for path in modules()} - {"__init__", "__main__"}
    assert shown.keys() == existing
    assert {package: shown[package] for package in ALLOWED_IMPORTS if package in existing} == {
        package: allowed - {"support", "__version__"} for package, allowed in ALLOWED_IMPORTS.items() if package in existing
    }


READERS_OF_RECORDED_DATA = {
    "sqlite3",
    "ckpt_observe.support.sqlite",
    "ckpt_observe.tracestore.TraceReader",
    "ckpt_observe.tracestore.database",
    "ckpt_observe.tracestore.reader",
    "ckpt_observe.journal.activity",
    "ckpt_observe.journal.directory.read_about",
    "ckpt_observe.journal.live_operations",
    "ckpt_observe.journal.page_reader",
    "ckpt_observe.journal.recovery",
    "ckpt_observe.journal.spool",
    "ckpt_observe.journal.unobserved_programs.read",
}
DELIVERS = {"cli/companion.py", "cli/daemon.py", "cli/health.py"}
"""Commands that are a part of delivery, which journals are for."""


def test_only_the_query_layer_reads_recorded_data():
    """Commands, viewers and what they draw read trace store and journals through `query`. `doctor` writes to the store, to test it."""
    reading = [
        f"{place}: {name}"
        for path in modules()
        if package_of(path) in ("cli", "viewer", "explain", "pictures", "tuning")
        and (place := path.relative_to(PACKAGE).as_posix()) not in DELIVERS
        for name, _ in imports(path)
        if any(name == reader or name.startswith(f"{reader}.") for reader in READERS_OF_RECORDED_DATA)
    ]
    assert reading == []


def test_unobserved_programs_are_read_through_queries():
    """The notes about programs that recorded nothing are imported for the name of their directory, which `clean` removes, only."""
    name = "ckpt_observe.journal.unobserved_programs"
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if package_of(path) in ("cli", "viewer")
        for each, _ in imports(path)
        if each == name
    }
    assert users == {"cli/clean.py"}
