"""The alerts, and the files made from them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.alerts.alert import CRITICAL, NONE, WARNING
from ckpt_observe.alerts.rule_files import ROUTING, RULES, RUNBOOK, all_alerts, files, routing, rules
from ckpt_observe.alerts.saves import budget_burn
from ckpt_observe.alerts.site import DAY, HOUR, MINUTE, Site
from ckpt_observe.cli.main import main
from ckpt_observe.dashboards import dashboards
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.semconv.metrics import DROP_REASONS, METRICS

COMMITTED = Path(__file__).parents[2] / "dashboards"
ALERTS = all_alerts(Site())
NAMES = {alert.name for alert in ALERTS}
every = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}{alert.labels.get('window', '')}")

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
SERIES = {spec.prometheus_name + suffix for spec in METRICS for suffix in SUFFIXES.get(spec.instrument, ("",))}
LABELS = {label for spec in METRICS for label in spec.labels} | {"instance", "job"}


def test_committed_files_are_up_to_date(tmp_path, capsys):
    """If not, run the command in the first line of one of them. The committed runbook is a link to the only copy, in the package."""
    package = Path(ckpt_observe.__file__).parent
    (tmp_path / "ckpt_observe").symlink_to(package)  # beside the copy, as in a checkout: CI has no package beside the tests
    directory = shutil.copytree(COMMITTED / "alerts", tmp_path / "dashboards" / "alerts", symlinks=True)
    stack = ["--grafana-url", "http://127.0.0.1:3000", "--jaeger-url", "http://127.0.0.1:16686"]
    assert main(["rules", "--check", str(directory), *stack]) == 0
    assert (directory / RUNBOOK).is_symlink()
    assert (directory / RUNBOOK).samefile(package / "alerts" / RUNBOOK)


@every
def test_expression_uses_existing_metrics(alert):
    """Every metric in an expression is in the registry, under its Prometheus name."""
    used = set(re.findall(r"\b(?:checkpoint|ckpt_observe)_[a-z_]+", alert.expr))
    assert used <= SERIES
    assert used or alert.expr == "vector(1)"


@every
def test_alert_is_well_formed(alert):
    """The severity is valid, the summary is the same for all tasks, the description uses existing labels, and no job or instance is hard-coded."""
    assert alert.severity in (CRITICAL, WARNING, NONE)
    assert alert.summary.endswith(".")
    assert "{{" not in alert.summary
    assert set(re.findall(r"\$labels\.(\w+)", alert.description)) <= LABELS
    assert not re.search(r"\b(job|instance|cluster)\s*(=|!=)", alert.expr)
    assert re.fullmatch(r"(Checkpoint|CkptObserve)[A-Z]\w+", alert.name)
    assert set(alert.inhibits) < NAMES - {alert.name}


def sections():
    text = files(Site())[RUNBOOK]
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def test_runbook_has_a_heading_for_each_alert():
    """The headings are exactly the names of the alerts."""
    assert set(sections()) == {alert.name for site in (Site(), Site(interval=MINUTE)) for alert in all_alerts(site)}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_runbook_entry_is_complete(name):
    """An entry has a meaning, a first query, likely causes and a remedy; its metrics and links exist."""
    body = sections()[name]
    parts = re.split(r"^\*\*(Meaning|First query|Likely causes|Remedy)\.\*\* ", body, flags=re.MULTILINE)
    assert parts[1::2] == ["Meaning", "First query", "Likely causes", "Remedy"]
    assert all(len(part.split()) >= 4 for part in parts[2::2])
    assert set(re.findall(r"\b(?:checkpoint|ckpt_observe)_[a-z_]+", body)) <= SERIES
    assert set(re.findall(r"\(#(\w+)\)", body)) <= {other.lower() for other in NAMES}


def test_runbook_names_every_reason_of_a_drop():
    """Whatever the label `reason` of the alert says, its section says what it means."""
    assert set(re.findall(r"`(\w+)`", sections()["CkptObserveDropped"])) >= set(DROP_REASONS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_runbook_counts_deaths_as_failures(name):
    """A first query for failures has the outcomes that the alerts count: if every save is killed, the answer is not empty."""
    outcomes = set(re.findall(r'outcome=~?"([^"]*)"', sections()[name]))
    assert outcomes <= {"error|interrupted", "ok|error|interrupted"}


@every
def test_runbook_says_when_a_lasting_alert_ends(alert):
    """An alert that ends after a week although nothing was done says so in its section."""
    if re.search(rf"time\(\) - {7 * DAY:g}\b", alert.expr) and "unless" in alert.expr:
        assert "week" in sections()[alert.name]


def test_every_rule_links_to_its_heading():
    """The link uses the runbook URL of the site; without one, it is relative to the rules."""
    for url, base in (("https://wiki.example/checkpoints", "https://wiki.example/checkpoints"), ("", "runbook.md")):
        for rule in all_rules(Site(runbook_url=url)):
            assert rule["annotations"]["runbook_url"] == f"{base}#{rule['alert'].lower()}"


def all_rules(site):
    return [rule for group in rules(site)["groups"] for rule in group["rules"]]


def test_links_to_dashboards():
    """Every alert links to a dashboard that exists, and sets only variables that this dashboard has."""
    variables = {f"/d/{each['uid']}": {variable["name"] for variable in each["templating"]["list"]} for each in dashboards().values()}
    for rule in all_rules(Site(grafana_url="https://grafana.example/sub/")):
        link = rule["annotations"]["dashboard_url"]
        assert link.startswith("https://grafana.example/sub/d/"), rule["alert"]
        path, _, query = link.removeprefix("https://grafana.example/sub").partition("?")
        assert set(re.findall(r"var-(\w+)=", query)) <= variables[path], rule["alert"]
    assert not any("dashboard_url" in rule["annotations"] for rule in all_rules(Site()))


def test_links_to_traces():
    """Alerts on operations link to a search of Jaeger by attributes that spans have. The others have no such link."""
    linked = set()
    for rule in all_rules(Site(jaeger_url="https://jaeger.example")):
        if link := rule["annotations"].get("traces_url"):
            linked.add(rule["alert"])
            assert link.startswith("https://jaeger.example/search?service={{ $labels.job | urlquery }}&"), rule["alert"]
            assert set(re.findall(r"tag=([a-z_.]+):", link)) <= {*ATTRIBUTES, "error"}, rule["alert"]
    about_metrics = {
        "CheckpointStuck",
        "CheckpointStorageFilling",
        "CheckpointMetricsVanished",
        "CheckpointMetricsAbsent",
        "CheckpointWatchdog",
    }
    assert linked == {name for name in NAMES if name.startswith("Checkpoint")} - about_metrics
    assert not any("traces_url" in rule["annotations"] for rule in all_rules(Site()))


@pytest.mark.parametrize("option", ["--runbook-url", "--grafana-url", "--jaeger-url"])
@pytest.mark.parametrize(
    "url",
    [
        "runbook.md",
        "wiki.example/x",
        "//wiki.example",
        "https://",
        "https://wiki.example/x#top",
        "https://wiki.example/?p=1",
        "https://[wiki",
    ],
)
def test_address_that_makes_no_link_is_refused(option, url, tmp_path, capsys):
    """An address that is not absolute, or to which nothing can be appended, is a usage error that names the option."""
    assert main(["rules", "--out", str(tmp_path), option, url]) == 2
    assert f"{option} is '{url}', but must be an absolute address" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("interval", "windows"), [(MINUTE, 4), (10 * MINUTE, 3), (30 * MINUTE, 2), (2 * HOUR, 1), (6 * HOUR, 0), (DAY, 0)])
def test_burn_rates_need_frequent_saves(interval, windows):
    """A window with fewer than three expected saves has no rule."""
    assert len(budget_burn(Site(interval=interval))) == windows


def test_batch_has_no_alerts_on_missing_metrics():
    """If metrics exist only while a job runs, the two alerts on missing metrics are left out, and no others."""
    assert NAMES - {alert.name for alert in all_alerts(Site(batch=True))} == {"CheckpointMetricsVanished", "CheckpointMetricsAbsent"}


def test_routing():
    """An alert inhibits others only for the same task, as the runbook says, and the receivers use the webhook of the site."""
    content = routing(Site(), "http://hooks.example/x/")
    assert [rule["equal"] for rule in content["inhibit_rules"]] == [["job", "instance", "task"]] * 3
    inhibited = {rule["source_matchers"][0]: rule["target_matchers"][0] for rule in content["inhibit_rules"]}
    assert "CheckpointFailureRatio" in inhibited['alertname="CheckpointFailing"']
    assert inhibited['alertname="CheckpointCorrupted"'] == 'alertname=~"CheckpointRestoreFailing"'
    assert [receiver["webhook_configs"][0]["url"] for receiver in content["receivers"]] == [
        f"http://hooks.example/x/{name}" for name in ("ticket", "page", "deadman")
    ]


def test_receivers_are_empty_by_default(tmp_path, capsys):
    """Without a webhook, the receivers have no address: Alertmanager would log an error for each notification that nobody accepts."""
    assert main(["rules", "--out", str(tmp_path)]) == 0
    assert "http://" not in (tmp_path / ROUTING).read_text()
    assert routing(Site(), "")["receivers"] == [{"name": "ticket"}, {"name": "page"}, {"name": "deadman"}]


def test_command_writes_files(tmp_path, capsys):
    """Files use the interval, objective and runbook of the site. `--check` reports an edited and a missing file."""
    out = tmp_path / "rules"
    command = ["rules", "--interval", "10m", "--slo", "0.999", "--runbook-url", "https://wiki.example/r"]
    assert main([*command, "--out", str(out)]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(str(out / name) for name in files(Site()))
    assert "https://wiki.example/r#checkpointstale" in (out / RULES).read_text()
    assert main([*command, "--check", str(out)]) == 0
    (out / RULES).write_text("edited")
    (out / RUNBOOK).unlink()
    assert main([*command, "--check", str(out)]) == 1
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [str(out / RULES), str(out / RUNBOOK)]


def test_command_reports_errors(tmp_path, capsys):
    """An invalid value or an unwritable directory gives a one-line error."""
    with pytest.raises(SystemExit, match="2"):
        main(["rules", "--out", str(tmp_path), "--interval", "soon"])
    assert "use a value such as 90s" in capsys.readouterr().err
    assert main(["rules", "--out", str(tmp_path), "--slo", "99"]) == 2
    assert "such as 0.99" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["rules", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"ckpt-observe: {tmp_path / 'file'}: File exists\n"
