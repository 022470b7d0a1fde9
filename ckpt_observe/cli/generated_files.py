"""Commands that generate files from the tables in the code: dashboards, alert rules, references, pages about libraries."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ckpt_observe.alerts.rule_files import files
from ckpt_observe.alerts.site import Site, format_duration, parse_duration
from ckpt_observe.cli import command_pages, library_pages
from ckpt_observe.cli.exit_codes import ERROR, OK
from ckpt_observe.cli.output import print_error, until_output_ends
from ckpt_observe.dashboards import dashboards
from ckpt_observe.environment import VARIABLES
from ckpt_observe.errors import ConfigError
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.semconv.launchers import LAUNCHERS, RANK_ATTRIBUTES
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.semconv.spans import SPANS
from ckpt_observe.semconv.values import ERROR_CLASSES, ERROR_CODES, OPERATIONS, OUTCOMES, PHASES
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.support.markdown import code, table

_EXIT_CODES: Final = "Exit codes: 0 files written or up to date, 1 files out of date or not writable, 2 wrong usage."
_DEFAULT_SITE: Final = Site()


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the commands `dashboards`, `rules`, `libraries`, `reference` and `semconv`."""
    _register_dashboards(subparsers)
    _register_rules(subparsers)
    _register_libraries(subparsers)
    _register_reference(subparsers)
    description = "Prints the reference of all names as Markdown, from the same tables that the code uses."
    parser = subparsers.add_parser("semconv", description=description)
    parser.set_defaults(run=run_semconv)


def _register_dashboards(subparsers: _SubParsersAction[Any]) -> None:
    description = "Writes the Grafana dashboards as JSON files, for file provisioning or import."
    parser = subparsers.add_parser("dashboards", description=description, epilog=_EXIT_CODES)
    _add_out_and_check(parser)
    parser.add_argument("--traces", choices=("jaeger", "tempo"), default="jaeger", help="data source for traces (default jaeger)")
    parser.set_defaults(run=run_dashboards)


def _register_rules(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "rules",
        description="Writes alert rules for Prometheus, an example configuration for Alertmanager, and the runbook that alerts link to.",
        epilog=_EXIT_CODES,
    )
    _add_out_and_check(parser)
    interval = f"time between two saves; the shortest one if tasks differ (default {format_duration(_DEFAULT_SITE.interval)})"
    slo = "fraction of saves that should succeed, between 0 and 1 (default %(default)s)"
    parser.add_argument("--interval", type=_duration, default=_DEFAULT_SITE.interval, metavar="TIME", help=interval)
    parser.add_argument("--slo", type=float, default=_DEFAULT_SITE.slo, metavar="FRACTION", help=slo)
    parser.add_argument("--batch", action="store_true", help="metrics exist only while a job runs: no alert if they are missing")
    runbook = "URL of the page that shows runbook.md to your colleagues, for links in notifications (default: links to the file)"
    parser.add_argument("--runbook-url", default="", metavar="URL", help=runbook)
    parser.add_argument("--grafana-url", default="", metavar="URL", help="URL of Grafana: alerts link to a dashboard")
    parser.add_argument("--jaeger-url", default="", metavar="URL", help="URL of Jaeger: alerts link to a search for the traces of the task")
    parser.add_argument("--webhook", default="", metavar="URL", help="URL that receives notifications (default: nobody is notified)")
    parser.set_defaults(run=run_rules)


def _register_libraries(subparsers: _SubParsersAction[Any]) -> None:
    description = (
        "Writes the pages about the observed libraries, docs/libraries/*.md, and the generated sections of other pages of a checkout."
    )
    parser = subparsers.add_parser("libraries", description=description, epilog=_EXIT_CODES)
    _add_out_and_check(parser)
    parser.set_defaults(run=run_libraries)


def _register_reference(subparsers: _SubParsersAction[Any]) -> None:
    description = "Writes the reference of all commands, docs/cli.md, and the JSON schemas of their output, docs/schemas/*.json."
    parser = subparsers.add_parser("reference", description=description, epilog=_EXIT_CODES)
    _add_out_and_check(parser)
    parser.set_defaults(run=run_reference)


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error


@until_output_ends
def run_dashboards(args: Namespace) -> int:
    """Write or check the dashboards."""
    contents = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in dashboards(args.traces).items()}
    return _write_or_check(args, "dashboards", contents)


@until_output_ends
def run_rules(args: Namespace) -> int:
    """Write or check the rules, the routing and the runbook."""
    site = Site(args.interval, args.slo, args.batch, args.runbook_url, args.grafana_url, args.jaeger_url)
    return _write_or_check(args, "rules", files(site, args.webhook))


@until_output_ends
def run_libraries(args: Namespace) -> int:
    """Write or check the pages about libraries."""
    return _write_or_check(args, "libraries", library_pages.files(args.out or args.check))


@until_output_ends
def run_reference(args: Namespace) -> int:
    """Write or check the reference of the commands."""
    return _write_or_check(args, "reference", command_pages.files())


@until_output_ends
def run_semconv(_args: Namespace) -> int:
    """Print the reference."""
    print(reference(), end="")
    return OK


def _add_out_and_check(parser: ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--out", metavar="DIR", type=Path, help="write the files to this directory")
    group.add_argument("--check", metavar="DIR", type=Path, help="write nothing; report files that are missing or out of date")


def _write_or_check(args: Namespace, command: str, contents: dict[str, str]) -> int:
    encoded = {name: text.encode() for name, text in contents.items()}
    try:
        return _write(args.out, encoded) if args.out else _check(args.check, command, encoded)
    except BrokenPipeError:  # the reader of our output has stopped reading: no file is at fault
        raise
    except OSError as error:
        print_error(f"{error.filename}: {error.strerror}")
        return ERROR


def _write(directory: Path, contents: dict[str, bytes]) -> int:
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
        print(directory / name)
    return OK


def _check(directory: Path, command: str, contents: dict[str, bytes]) -> int:
    existing = {name: (directory / name).read_bytes() for name in contents if (directory / name).exists()}
    outdated = [name for name, content in contents.items() if existing.get(name) != content]
    for name in outdated:
        state = "out of date" if name in existing else "missing"
        print_error(f"{directory / name} is {state}: run `ckpt-observe {command} --out {directory}` with the same options")
    return ERROR if outdated else OK


def reference() -> str:
    """Return the reference of all names as Markdown."""
    return "\n".join(_reference_lines()) + "\n"


def _reference_lines() -> Iterator[str]:
    yield "# Names"
    yield ""
    yield "All names of spans, attributes, metrics and settings. Generated by `ckpt-observe semconv`; do not edit."
    yield from _section("Spans", ("Span", "Parent", "Meaning"), ((code(row.name), row.parent, row.meaning) for row in SPANS))
    for title, values in (("Operations", OPERATIONS), ("Phases", PHASES), ("Outcomes", OUTCOMES), ("Error classes", ERROR_CLASSES)):
        yield from _section(title, ("Value", "Meaning"), ((code(name), meaning) for name, meaning in values.items()))
    codes = (
        (code(name), row.error_class, "yes" if row.retryable else "no", row.meaning, ADVICE[name]) for name, row in ERROR_CODES.items()
    )
    yield from _section("Error codes", ("Code", "Class", "Retry may help", "Meaning", "What to do"), codes)
    attributes = ((code(name), row.kind, row.on, row.meaning) for name, row in ATTRIBUTES.items())
    yield from _section("Attributes", ("Attribute", "Type", "On", "Meaning"), attributes)
    launchers = ((row.title, *(code(variable) if variable else "" for variable in row.variables)) for row in LAUNCHERS)
    yield from _section("Launchers", ("Launcher", *(code(name) for name in RANK_ATTRIBUTES)), launchers)
    metrics = ((code(row.prometheus_name), row.instrument, row.unit, ", ".join(row.labels), row.meaning) for row in METRICS)
    yield from _section("Metrics", ("Metric in Prometheus", "Type", "Unit", "Labels", "Meaning"), metrics)
    settings = ((code(row.name), code(row.argument) if row.argument else "", row.default, row.meaning) for row in VARIABLES)
    yield from _section("Settings", ("Variable", "Argument of `observe()`", "Default", "Meaning"), settings)


def _section(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield from table(header, rows)
