"""Annotations of an alert that link to its section of the runbook, to a dashboard and to traces.

A notification is read in a chat or on a phone, so the links are absolute if the site has named its addresses.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from ckpt_observe.alerts.alert import Alert
from ckpt_observe.alerts.site import Site
from ckpt_observe.semconv import attributes as names

RUNBOOK: Final = "runbook.md"
_MAX_TRACES: Final = 20


def links(alert: Alert, site: Site) -> dict[str, str]:
    """Return the links of an alert by the name of their annotation."""
    annotations = {"runbook_url": f"{site.runbook_url or RUNBOOK}#{alert.name.lower()}"}
    if site.grafana_url:
        annotations["dashboard_url"] = _dashboard(alert, site.grafana_url.rstrip("/"))
    if site.jaeger_url and alert.traces is not None:
        annotations["traces_url"] = _traces(alert.traces, site.jaeger_url.rstrip("/"))
    return annotations


def _dashboard(alert: Alert, url: str) -> str:
    """Return the dashboard with the variables set to the labels of the alert."""
    variables = "".join(_if_present(label, f"&var-{label}={_label(label)}") for label in alert.links_by)
    return f"{url}/d/checkpoint-{alert.dashboard}{f'?orgId=1{variables}' if variables else ''}"


def _traces(attributes: tuple[tuple[str, str], ...], url: str) -> str:
    """Return a search of Jaeger. It needs a service, which is the job of metrics that the program pushes."""
    tags = "".join(f"&tag={quote(name)}:{value if value.startswith('{{') else quote(value)}" for name, value in attributes)
    task = _if_present("task", f"&tag={quote(names.TASK_NAME)}:{_label('task')}")
    return f"{url}/search?service={_label('job')}&limit={_MAX_TRACES}{tags}{task}"


def _if_present(label: str, text: str) -> str:
    """Return a template for text that is left out if the alert does not have the label, such as `task` of operations without a task."""
    return f"{{{{ if $labels.{label} }}}}{text}{{{{ end }}}}"


def _label(name: str) -> str:
    return f"{{{{ $labels.{name} | urlquery }}}}"
