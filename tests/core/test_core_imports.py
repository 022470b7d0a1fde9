"""The core does not depend on the rest of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ckpt_observe.core
from ckpt_observe.semconv.values import ERROR_CODES

CORE = Path(ckpt_observe.core.__file__).parent


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_core_imports_only_errors_and_support():
    """The core imports only itself, `errors` and `support` from the package, and no telemetry library."""
    forbidden = {
        (path.name, name)
        for path in CORE.rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] in ("opentelemetry", "wrapt", "prometheus_client", "lmnr")
        or (name.startswith("ckpt_observe") and not name.startswith(("ckpt_observe.core", "ckpt_observe.errors", "ckpt_observe.support")))
    }
    assert forbidden == set()


def test_importing_the_core_is_light():
    """Importing the core imports no driver and no telemetry library, and starts no thread."""
    program = "import sys, threading, ckpt_observe.core; print(*sys.modules); assert threading.active_count() == 1"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "psycopg", "redis", "obstore", "cryptography", "opentelemetry", "wrapt", "sqlite3"} & set(modules)


def test_every_error_code_of_the_core_is_in_semconv():
    """Every error code that the core uses is described in `semconv`."""
    codes = set()
    for path in [*CORE.rglob("*.py"), CORE.parent / "errors.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.partition(".")[0] in PREFIXES
                and "." in node.value
            ):
                codes.add(node.value)
    assert codes >= {"storage.no_space", "integrity.broken_base", "encryption.wrong_key"}
    assert codes - set(ERROR_CODES) == set()


PREFIXES = {code.partition(".")[0] for code in ERROR_CODES}


def test_no_file_is_too_long():
    """No file of the core has more than 300 lines."""
    assert {path.name: length for path in CORE.rglob("*.py") if (length := len(path.read_text().splitlines())) > 300} == {}
