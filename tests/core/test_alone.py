"""The core stands alone."""

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
    """The core imports nothing of the package but itself, the errors and the shared support code, and no telemetry at all."""
    foreign = {
        (path.name, name)
        for path in CORE.rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] in ("opentelemetry", "wrapt", "prometheus_client", "lmnr")
        or (name.startswith("ckpt_observe") and not name.startswith(("ckpt_observe.core", "ckpt_observe.errors", "ckpt_observe.support")))
    }
    assert foreign == set()


def test_importing_the_core_is_light():
    """No driver, no telemetry and no thread comes with the import."""
    program = "import sys, threading, ckpt_observe.core; print(*sys.modules); assert threading.active_count() == 1"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "psycopg", "redis", "obstore", "cryptography", "opentelemetry", "wrapt", "sqlite3"} & set(loaded)


def test_every_code_the_core_raises_is_in_the_table():
    """L9, L10: each error code has its class and meaning in the registry of names."""
    used = set()
    for path in [*CORE.rglob("*.py"), CORE.parent / "errors.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.partition(".")[0] in PREFIXES
                and "." in node.value
            ):
                used.add(node.value)
    assert used >= {"storage.no_space", "integrity.broken_base", "encryption.wrong_key"}
    assert used - set(ERROR_CODES) == set()


PREFIXES = {code.partition(".")[0] for code in ERROR_CODES}


def test_no_file_is_too_long_to_read():
    """Files of the core have one subject each, and fit in a few views."""
    assert {path.name: length for path in CORE.rglob("*.py") if (length := len(path.read_text().splitlines())) > 300} == {}
