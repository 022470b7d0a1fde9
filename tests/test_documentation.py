"""Links, files, commands, settings and metrics that the Markdown pages name exist. Sphinx checks the links again in CI."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ckpt_observe
import ckpt_observe.core
from ckpt_observe import config, environment, query, readers, wiring
from ckpt_observe.cli.main import create_complete_parser, main
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline
from ckpt_observe.tracestore import FILENAME, TraceReader

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ckpt_observe.__file__).parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "ckpt_observe" / "alerts" / "runbook.md"]
REFERENCE = (ROOT / "docs" / "semconv.md").read_text(encoding="utf-8")
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The changelog lists former names, too."""
FOLDERS = ".ci|benchmarks|ckpt_observe|dashboards|deploy|docs|examples|tests"


def located(path: Path) -> Path:
    """Where a file of the repository is. CI installs the package and copies the rest."""
    return PACKAGE.parent / path.relative_to(ROOT) if path.is_relative_to(ROOT / PACKAGE.name) else path


def text_of(page: Path) -> str:
    """The page without code blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", located(page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MyST name them."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match("https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not located(target).is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    """Every relative link leads to a file of the repository, and every anchor to a heading."""
    assert broken_links(page) == []


def test_broken_links_are_noticed(tmp_path):
    """Control: a missing file and a missing anchor are reported, an existing anchor is not."""
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n[1](gone.md) [2](#a-b-c) [3](#nowhere) [4](https://example.org)\n")
    assert broken_links(page) == ["gone.md", "#nowhere"]


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_files(page):
    """Every file, directory and benchmark that a page names in backticks exists."""
    names = re.findall(r"`([^`\n]+)`", text_of(page))
    paths = [name for name in names if re.fullmatch(rf"(?:{FOLDERS})/[\w./*-]*", name)]
    benchmarks = re.findall(r"benchmarks\.(\w+)", located(page).read_text(encoding="utf-8"))
    assert [path for path in paths if not list(located(ROOT / path).parent.glob(Path(path).name))] == []
    assert [name for name in benchmarks if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_names(page):
    """Every command, setting and metric that a page names exists."""
    text = located(page).read_text(encoding="utf-8")
    commands = next(action.choices for action in create_complete_parser()._actions if action.choices and action.metavar == "COMMAND")
    settings = {variable.name for variable in environment.VARIABLES}
    assert set(re.findall(r"ckpt-observe ([a-z]+)", "\n".join(code_of(text)))) <= set(commands)
    assert set(re.findall(r"\bCKPT_OBSERVE_[A-Z_]+\b", text)) <= settings
    metrics = set(re.findall(r"\b(?:checkpoint|ckpt_observe)_[a-z_]+_(?:total|seconds|bytes|ratio)\b", text))
    assert {name for name in metrics if f"`{name}`" not in REFERENCE} == set()


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_list_of_exporters(page):
    """What a reader copies does not replace the exporters that the environment configures: it adds to them."""
    text = "\n".join(code_of(located(page).read_text(encoding="utf-8")))
    values = re.findall(r"CKPT_OBSERVE_EXPORTERS=(\S+)|exporters=[\[(]?[\"']([^\"']+)|--exporters (\S+)", text)
    assert [value for match in values for value in match if value and not value.startswith(("+", "-", "none"))] == []


def code_of(text: str) -> list[str]:
    """Code blocks and inline code."""
    return [*re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(r"`(ckpt-observe [^`\n]+)`", text)]


def test_api_page():
    """docs/api.md lists every public name."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = {*ckpt_observe.__all__, *ckpt_observe.core.__all__, *query.__all__, *readers.__all__}
    assert {name for name in public if not re.search(rf"`{name}\b", page)} == set()


def test_pages_about_libraries(capsys):
    """The generated pages and tables are up to date."""
    assert main(["libraries", "--check", str(ROOT)]) == 0, capsys.readouterr().err


def test_alerts_page():
    """docs/alerts.md lists every alert, with its severity."""
    page = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    rules = (ROOT / "dashboards" / "alerts" / "checkpoint.rules.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"alert: (\w+).*?severity: (\w+)", rules, re.DOTALL)
    assert len(alerts) > 15
    assert [alert for alert, severity in alerts if not re.search(rf"\| `{alert}` \|[^|]*\b{severity}\b", page)] == []


PROGRAM = """
import sys, tempfile
import ckpt_observe.auto
from tiny_saver import FileSaver, QuotaError, Saver
saver = FileSaver(tempfile.mkdtemp())
saver.save("run-1", {"loss": 0.25}, step=1)
saver.load("run-1")
class Full(Saver):
    def save(self, run, state, step=None):
        raise QuotaError
try:
    Full().save("run-2", {})
except QuotaError:
    pass
"""


@pytest.fixture
def page_on_extending(tmp_path):
    """The examples of docs/extending.md as files, and its announcement of an instrumentor as an installed package."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        with (tmp_path / (name[1] if name else "test_page.py")).open("a", encoding="utf-8") as file:
            file.write(block)
    [announcement] = re.findall(r"```toml\n(.*ckpt_observe.instrumentors.*\n.*\n)```", page)
    package = tmp_path / "tiny_instrumentor-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-instrumentor\nVersion: 1.0\n")
    points = tomllib.loads(announcement)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in rows.items()) for group, rows in points.items()]
    (package / "entry_points.txt").write_text("".join(lines))
    return tmp_path


def test_page_on_extending(page_on_extending):
    """The examples of docs/extending.md run: its exporter and its instrumentor pass their contracts."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py", "test_tiny_instrumentor.py"]
    result = subprocess.run(command, cwd=page_on_extending, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_instrumentor_of_the_page(page_on_extending):
    """The announced instrumentor records what the page says, also for a saver that the program defines later."""
    state = page_on_extending / "state"
    environ = {**os.environ, "PYTHONPATH": str(page_on_extending), "CKPT_OBSERVE_DIR": str(state), "CKPT_OBSERVE_EXPORTERS": "local"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, cwd=page_on_extending)
    wiring.deliver_dead(config.read(exporters="local", dir=state), 60)  # what it had no time for at its exit
    with TraceReader(state / FILENAME) as reader:
        traces = [reader.spans(trace.trace_id) for trace in reversed(reader.newest())]
    assert [outline(spans).split() for spans in traces] == [
        ["checkpoint.save", "checkpoint.serialize"],
        ["checkpoint.load", "checkpoint.deserialize"],
        ["checkpoint.save"],
    ]
    save, _, failure = (spans[0].attributes for spans in traces)
    assert (save[names.SYSTEM], save[names.TASK_ID], save[names.STEP], save[names.SIZE_SERIALIZED]) == ("tiny", "run-1", 1, 14)
    assert (failure[names.SAVER], failure[names.ERROR_CODE]) == ("Full", "storage.quota")


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of ARCHITECTURE, without its header."""
    table = re.search(rf"^## {heading}$.*?(^\|.*?)\n\n", ARCHITECTURE, re.DOTALL | re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()[2:]]


def defined_in(path: Path) -> set[str]:
    """Names of functions, classes and methods, such as `Pool.take`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    members = {
        f"{node.name}.{member.name}"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for member in node.body
        if isinstance(member, kinds)
    }
    return members | {node.name for node in tree.body if isinstance(node, kinds)}


def test_walk_through_a_save():
    """Every file and function of the step-by-step table in ARCHITECTURE exists."""
    steps = rows("One save, step by step")
    assert len(steps) > 10
    for _, step, _ in steps:
        file, *functions = re.findall(r"`([\w./]+)`", step)
        assert functions
        assert set(functions) <= defined_in(PACKAGE / file), file


def test_modules_of_architecture():
    """Every module that ARCHITECTURE names exists, and every class that it says is in a module is there."""
    text = re.sub(r"^```.*?^```", "", ARCHITECTURE, flags=re.DOTALL | re.MULTILINE)
    modules = {name for name in re.findall(r"`([\w/]+\.py)`", text) if not (ROOT / name).exists()}
    assert {name for name in modules if not (PACKAGE / name).exists()} == set()
    for name, module in re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", text):
        assert name in defined_in(PACKAGE / module)
