"""A lock is released although a signal handler raises in a loop, or while it is acquired.

CPython runs signal handlers at the jump back to the start of a loop. If that jump depends on a condition, it has no entry in the exception
table, so that Python 3.13 leaves the function without the `__exit__` of the block around it, and the lock is held for ever. A loop in a
function that is called within the block is safe: the call has an entry.
"""

from __future__ import annotations

import ast
import dis
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import ckpt_observe

PACKAGE = Path(ckpt_observe.__file__).parent

SAFE = """
def remove(items):
    with lock:
        kept = select(items)
"""
UNSAFE = """
def remove(items):
    with lock:
        while items:
            items.pop()
"""


def locked_lines(source: str, locks: set[str]) -> set[int]:
    """Return the lines within blocks that hold one of the locks."""
    blocks = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.With)]
    held = [node for node in blocks if any(re.split(r"\W", ast.unparse(item.context_expr))[-1] in locks for item in node.items)]
    return {line for node in held for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module and of its functions, without generators: the exception passes on into the code that iterates them."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name != "<genexpr>":
            yield from code_objects(constant)


def uncovered_jumps(source: str) -> set[int]:
    """Return the lines of jumps back into a block, without an entry in the exception table."""
    lines = set()
    for code in code_objects(compile(source, "source", "exec")):
        bytecode = dis.Bytecode(code)
        entries = bytecode.exception_entries  # type: ignore[attr-defined]

        def is_covered(offset: int) -> bool:
            return any(entry.start <= offset < entry.end for entry in entries)  # noqa: B023

        for instruction in bytecode:
            if "JUMP_BACKWARD" in instruction.opname and not is_covered(instruction.offset) and is_covered(instruction.argval):
                assert instruction.positions is not None
                lines.add(instruction.positions.lineno)
    return {line for line in lines if line is not None}


@pytest.mark.skipif(sys.version_info < (3, 13), reason="earlier versions run signal handlers after the jump")
def test_control_detects_a_loop_that_holds_a_lock():
    """Control: the loop within the block is detected, and the call of a function is not."""
    assert locked_lines(UNSAFE, {"lock"}) & uncovered_jumps(UNSAFE)
    assert not locked_lines(SAFE, {"lock"}) & uncovered_jumps(SAFE)


def names_of(kinds: str, sources: dict[Path, str]) -> set[str]:
    """Return the names of the variables that locks of these kinds are assigned to."""
    pattern = re.compile(rf"(\w+)(?:: [\w.\[\]]+)? = threading\.(?:{kinds})\(")
    return {name for source in sources.values() for name in pattern.findall(source)}


@pytest.fixture(scope="module")
def sources():
    return {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}


def test_no_condition_is_entered(sources):
    """A condition is entered by its lock: `Condition.__enter__` is Python code, and if a signal handler raises at its end, nothing leaves it."""
    conditions = names_of("Condition", sources)
    assert conditions
    assert [f"{path.relative_to(PACKAGE)}" for path, source in sources.items() if locked_lines(source, conditions)] == []


def test_no_loop_can_leave_a_lock_held(sources):
    """No block that holds a lock has a jump at which a signal handler that raises would leave it held."""
    locks = names_of("Lock|RLock", sources)
    assert locks
    locked = {path: lines for path, source in sorted(sources.items()) if (lines := locked_lines(source, locks))}
    violations = [
        f"{path.relative_to(PACKAGE)}:{line}" for path, lines in locked.items() for line in sorted(lines & uncovered_jumps(sources[path]))
    ]
    assert violations == []
