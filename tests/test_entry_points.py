"""A package that is installed beside ours adds an exporter, a store and an instrumentor."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe import config, wiring
from ckpt_observe.span import from_json_line
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.instrumentors import InstrumentorContract
from ckpt_observe.tracestore import FILENAME, TraceReader

PLUGIN = Path(__file__).parent.parent / "examples" / "plugin"

PROGRAM = """
import shelve, sys
import ckpt_observe.auto
from ckpt_observe import api
from ckpt_observe.core import Checkpointer
api.EXIT_TIMEOUT = 120.0  # the plug-in delivers, however busy the machine is
Checkpointer("dictionary://runs").save("run", {"step": 1})
with shelve.open(sys.argv[1]) as shelf:
    shelf["state"] = {"step": 1}
"""


class TestPluginExporter(ExporterContract):
    """The exporter that people copy keeps the contract."""

    @pytest.fixture
    def exporter(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(PLUGIN)
        return importlib.import_module("example_plugin").JsonFileExporter(tmp_path / "spans")

    def received(self, exporter):
        return [from_json_line(path.read_text()) for path in exporter._directory.glob("*.json")]

    def break_backend(self, exporter):
        exporter._directory.write_text("not a directory")


class TestPluginInstrumentor(InstrumentorContract):
    """The instrumentor that people copy keeps the contract."""

    instrumentor = "example_plugin:ShelveInstrumentor"
    use = "import shelve; shelve.Shelf({})['state'] = 1"

    @pytest.fixture(autouse=True)
    def plugin(self, monkeypatch):
        monkeypatch.syspath_prepend(PLUGIN)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A directory with the installed wheel of the example plug-in."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, PLUGIN], check=True)
    [wheel] = wheels.iterdir()
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", site, wheel], check=True)
    return site


def run(site, *arguments, **variables):
    """Run Python with the plug-in installed, beside the package under test."""
    path = os.pathsep.join((str(site), str(Path(ckpt_observe.__file__).parent.parent)))
    environ = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environ, capture_output=True, text=True, check=False)


def saves_in(state):
    """The systems whose saves the plug-in's exporter received; the core's save must be in the plug-in's store."""
    spans = [from_json_line(path.read_text()) for path in (state / "spans").iterdir()]
    saves = {span.attributes["checkpoint.system"]: span for span in spans if span.name == "checkpoint.save"}
    assert saves["reference"].attributes["checkpoint.store"] == "dictionary"
    return set(saves)


def test_plugin_is_used(site, tmp_path):
    """One program uses the store by URL, the exporter by name, and is observed by the instrumentor without naming it."""
    state = tmp_path / "state"
    process = run(site, "-c", PROGRAM, tmp_path / "shelf", CKPT_OBSERVE_DIR=str(state), CKPT_OBSERVE_EXPORTERS="jsonfile")
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert saves_in(state) == {"reference", "shelve"}


def test_plugin_is_delivered_for_by_a_companion(site, tmp_path):
    """Another process delivers to the plug-in's exporter, too."""
    state = tmp_path / "state"
    variables = {"CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_EXPORTERS": "jsonfile", "CKPT_OBSERVE_DELIVERY": "companion"}
    program = PROGRAM + "from ckpt_observe import api; assert api._watch.flush(60)"
    process = run(site, "-c", program, tmp_path / "shelf", **variables)
    assert (process.returncode, process.stderr) == (0, "")
    assert saves_in(state) == {"reference", "shelve"}


def test_doctor_lists_the_plugin(site, tmp_path):
    """The doctor reports the plug-in's instrumentor like a bundled one."""
    process = run(site, "-m", "ckpt_observe", "doctor", CKPT_OBSERVE_DIR=str(tmp_path / "state"), CKPT_OBSERVE_EXPORTERS="jsonfile")
    assert "shelve" in process.stdout


def test_plugin_that_cannot_be_imported(site, tmp_path):
    """A broken plug-in is reported with its package; the program runs, and bundled libraries are observed."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "example_plugin.py").write_text("raise RuntimeError('no such device')")
    variables = {"CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_EXPORTERS": "local"}
    code = "import ckpt_observe.auto\nfrom ckpt_observe.core import Checkpointer\nCheckpointer('memory://').save('run', {})"
    process = run(f"{broken}{os.pathsep}{site}", "-c", code, **variables)
    assert process.returncode == 0
    assert "Cannot load the instrumentor shelve" in process.stderr
    assert "ckpt-observe-example-plugin" in process.stderr
    wiring.deliver_dead(config.read(exporters="local", dir=tmp_path / "state"), 60)  # what it had no time for at its exit
    with TraceReader(tmp_path / "state" / FILENAME) as reader:
        assert [trace.name for trace in reader.newest(10)] == ["checkpoint.save"]


BROKEN = """
from ckpt_observe.exporter import Exporter
from ckpt_observe.instrument.instrumentor import Instrumentor

class RaisesInInstrument(Instrumentor):
    name, library = "broken", "json"
    def targets(self): return []
    def instrument(self): raise RuntimeError("broken plug-in")

class RaisesInUninstrument(Instrumentor):
    name, library = "broken", "json"
    def targets(self): return []
    def uninstrument(self): raise RuntimeError("broken plug-in")

class Unnamed(Instrumentor):
    name, library = "another name", "json"
    def targets(self): return []

class BrokenExporter(Exporter):
    name = "broken"
    def __init__(self, settings): pass
    def send(self, spans): pass

class RaisesInStart(BrokenExporter):
    def start(self, health): raise RuntimeError("broken plug-in")

class RaisesInClose(BrokenExporter):
    def close(self): raise RuntimeError("broken plug-in")
"""
INSTRUMENTORS, EXPORTERS = "ckpt_observe.instrumentors", "ckpt_observe.exporters"


def install_broken(tmp_path, entry_points):
    """A directory with an installed package of broken plug-ins."""
    site = tmp_path / "site"
    metadata = site / "broken-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    (site / "broken.py").write_text(BROKEN)
    return site


def test_doctor_names_instrumentors_by_their_entry_points(tmp_path):
    """The doctor uses the names that the settings accept, which may differ from those of the classes, and reports what does not load."""
    entry_points = f"[{INSTRUMENTORS}]\nfirst = broken:Unnamed\nsecond = broken:Missing"
    process = run(install_broken(tmp_path, entry_points), "-m", "ckpt_observe", "doctor", CKPT_OBSERVE_DIR=str(tmp_path / "state"))
    lines = [" ".join(line.split()) for line in process.stdout.splitlines()]
    assert "ok patches first nothing to patch" in lines
    assert "problem patches second the instrumentor cannot be loaded; the log says why" in lines


@pytest.mark.parametrize(
    ("entry_points", "message"),
    [
        (f"[{INSTRUMENTORS}]\nbroken = broken:RaisesInInstrument", "broken plug-in"),
        (f"[{INSTRUMENTORS}]\nbroken = broken:RaisesInUninstrument", "broken plug-in"),
        (f"[{INSTRUMENTORS}]\nbroken = builtins:object", "returned a object, not an Instrumentor"),
        (f"[{INSTRUMENTORS}]\nthis line has no value", "an installed package has invalid entry points"),
        (f"[{EXPORTERS}]\nbroken = broken:RaisesInStart", r"Exporter broken: start\(\) failed: RuntimeError\('broken plug-in'\)"),
        (f"[{EXPORTERS}]\nbroken = broken:RaisesInClose", r"Exporter broken: close\(\) failed: RuntimeError\('broken plug-in'\)"),
    ],
)
def test_plugin_that_raises(tmp_path, entry_points, message):
    """A plug-in that raises is logged; the program runs and exits as usual, and the bundled exporter gets its operations."""
    site, state = install_broken(tmp_path, entry_points), tmp_path / "state"
    patient = (
        "from ckpt_observe import api\napi.EXIT_TIMEOUT = 120.0\n" if "InClose" in entry_points else ""
    )  # the others may never be done
    code = f"import ckpt_observe.auto\n{patient}from ckpt_observe.core import Checkpointer\nCheckpointer('memory://').save('run', {{}})"
    exporters = "local,broken" if EXPORTERS in entry_points else "local"
    process = run(site, "-c", code, CKPT_OBSERVE_DIR=str(state), CKPT_OBSERVE_EXPORTERS=exporters)
    assert process.returncode == 0
    assert re.search(message, process.stderr)
    assert "atexit" not in process.stderr
    if run(site, "-c", "import opentelemetry.context").returncode:
        pytest.skip("this version of OpenTelemetry cannot be imported if an installed package has invalid entry points")
    wiring.deliver_dead(config.read(exporters="local", dir=state), 60)  # what it had no time for at its exit
    with TraceReader(state / FILENAME) as reader:
        assert [trace.name for trace in reader.newest(10)] == ["checkpoint.save"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from ckpt_observe.core import Checkpointer; Checkpointer('dictionary://x')", "dictionary"),
        ("import ckpt_observe; ckpt_observe.observe(exporters='jsonfile')", "jsonfile"),
    ],
)
def test_without_the_plugin(code, message, tmp_path):
    """The names mean nothing if the plug-in is not installed: ConfigError lists those that exist."""
    process = run(tmp_path, "-c", code, CKPT_OBSERVE_DIR=str(tmp_path / "state"))
    assert "ConfigError" in process.stderr
    assert message in process.stderr
