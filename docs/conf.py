"""The documentation site: `sphinx-build -W -n -c docs . build/docs`.

The source directory is the repository root, so that README, ARCHITECTURE and the runbook are pages of the site without being moved, and
relative links work both on the site and on a forge. Directives that a forge would show as text (toctree, autodoc) are appended here.
"""

import inspect
from types import ModuleType

from sphinx.application import Sphinx

import ckpt_observe
import ckpt_observe.core
import ckpt_observe.query
import ckpt_observe.readers
from ckpt_observe.libraries import LIBRARIES

project = "ckpt_observe"
version = release = ckpt_observe.__version__
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/libraries/*.md", "ckpt_observe/alerts/*.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]

html_theme = "furo"
html_title = "ckpt_observe"
html_extra_path = ["redirect"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = html_copy_source = False

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # the changelog starts with a version

default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
nitpick_ignore_regex = [("py:.*", ".*")]  # signatures name types of other packages, and of ours that have no page

CONTENTS = {
    "Start": ["Introduction </README>", "/docs/viewer", "/docs/traces", "/docs/inspect", "/docs/readers", "/docs/stack"],
    "Instrument": [
        "/docs/libraries",
        "/docs/langgraph",
        "/docs/training",
        "/docs/own-code",
        "/docs/processes",
        "/docs/core",
        "/docs/extending",
    ],
    "Deliver": ["/docs/backends", "/docs/jaeger", "/docs/phoenix", "/docs/mlflow", "/docs/delivery", "/docs/metrics", "/docs/scale"],
    "Operate": [
        "/docs/dashboards",
        "/docs/alerts",
        "/ckpt_observe/alerts/runbook",
        "/docs/reliability",
        "/docs/fidelity",
        "/docs/faults",
        "/SECURITY",
    ],
    "Reference": ["/docs/semconv", "/docs/cli", "/docs/api", "/CHANGELOG"],
    "Develop": ["/ARCHITECTURE", "/docs/contributing"],
}


def setup(app: Sphinx) -> None:
    app.connect("source-read", append_directives)


def append_directives(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == "docs/index":
        source[0] += "".join(table_of_contents(caption, pages) for caption, pages in CONTENTS.items())
    elif page == "docs/libraries":
        source[0] += table_of_contents("Libraries", [f"/docs/libraries/{name}" for name in LIBRARIES])
    elif page == "docs/api":
        source[0] += api(ckpt_observe, ckpt_observe.__all__)
        source[0] += api(ckpt_observe.query, sorted(ckpt_observe.query.__all__))
        source[0] += api(ckpt_observe.readers, sorted(ckpt_observe.readers.__all__))
        source[0] += api(ckpt_observe.core, sorted(set(ckpt_observe.core.__all__) - set(ckpt_observe.__all__)))


def table_of_contents(caption: str, pages: list[str]) -> str:
    entries = "\n".join(pages)
    return f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{entries}\n```\n"


def api(module: ModuleType, names: list[str]) -> str:
    """Autodoc directives for names of a module."""
    directives = "\n".join(f".. {directive(getattr(module, name))}:: {module.__name__}.{name}" for name in names)
    return f"\n## {module.__name__}\n\n```{{eval-rst}}\n{directives}\n```\n"


def directive(value: object) -> str:
    if isinstance(value, type):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isfunction(value) else "autodata"
