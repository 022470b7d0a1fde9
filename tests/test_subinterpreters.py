"""Programs that run Python in several interpreters of one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ckpt_observe import config, wiring
from ckpt_observe.query import open_traces

HOST = """
import sys
from importlib.metadata import version
try:
    import _interpreters as interpreters
    create = lambda: interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    create = lambda: interpreters.create(isolated=False)

IMPORT = "import ckpt_observe.auto"
WORK = IMPORT + '''
import ckpt_observe
for number in range(20):
    with ckpt_observe.checkpoint("save", id=str(number)) as operation, operation.phase("write"):
        pass
'''
exec(IN_MAIN)
# The recorder needs msgspec. From 3.12 on, only one interpreter can import it; before 0.22, the process crashes at exit if several did.
if sys.version_info >= (3, 12) or [int(part) for part in version("msgspec").split(".")[:2]] < [0, 22]:
    WORK = IMPORT
for _ in range(5):
    interpreter = create()
    assert interpreters.run_string(interpreter, WORK) is None
    interpreters.destroy(interpreter)
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is observed on Windows")
@pytest.mark.parametrize("in_main", ["", "exec(WORK)"], ids=["unobserved", "observed"])
def test_end_of_a_subinterpreter(tmp_path, in_main):
    """A program whose interpreters save and end runs to its end. They are not observed, and each says so once: a thread would abort Python."""
    program = f"IN_MAIN = {in_main!r}\n{HOST}"
    environ = {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path), "CKPT_OBSERVE_EXPORTERS": "local"}
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert result.stderr.count("not the main interpreter") == 5
    wiring.deliver_dead(config.read(exporters="local", dir=tmp_path), 60)  # what it had no time for at its exit
    with open_traces(tmp_path) as traces:
        assert len(traces.traces(limit=1000)) == (20 if in_main else 0), "the saves of the main interpreter"
