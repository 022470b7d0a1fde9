"""The table of alerts, and what is made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_observe.alerts.alert import CRITICAL, NONE, WARNING
from ckpt_observe.alerts.files import RULES, RUNBOOK, files
from ckpt_observe.alerts.plan import DAY, HOUR, MINUTE, Plan
from ckpt_observe.alerts.routing import routing
from ckpt_observe.alerts.rules import every_alert, rules
from ckpt_observe.alerts.saves import budget_burn
from ckpt_observe.cli.main import main
from ckpt_observe.semconv.metrics import METRICS

COMMITTED = Path(__file__).parents[2] / "dashboards"
EVERY = every_alert(Plan())
NAMES = {alert.name for alert in EVERY}
every = pytest.mark.parametrize("alert", EVERY, ids=lambda alert: f"{alert.name}{alert.labels.get('window', '')}")

SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
SERIES = {spec.prometheus_name + suffix for spec in METRICS for suffix in SUFFIXES.get(spec.instrument, ("",))}
LABELS = {label for spec in METRICS for label in spec.labels} | {"instance", "job"}


def test_committed_files_are_what_the_code_makes(capsys):
    """Else: ckpt-observe rules --out dashboards/alerts."""
    assert main(["rules", "--check", str(COMMITTED / "alerts")]) == 0
    assert (COMMITTED / RUNBOOK).read_text(encoding="utf-8") == files(Plan())[RUNBOOK]


@every
def test_expression_uses_only_metrics_that_there_are(alert):
    """Each name is one of the registry, as Prometheus has it."""
    used = set(re.findall(r"\b(?:checkpoint|ckpt_observe)_[a-z_]+", alert.expr))
    assert used <= SERIES
    assert used or alert.expr == "vector(1)"


@every
def test_alert_says_what_it_is(alert):
    """A severity of the three; one sentence that is the same for all tasks; a description that uses labels which there are; no name hard-coded."""
    assert alert.severity in (CRITICAL, WARNING, NONE)
    assert alert.summary.endswith(".")
    assert "{{" not in alert.summary
    assert set(re.findall(r"\$labels\.(\w+)", alert.description)) <= LABELS
    assert not re.search(r"\b(job|instance|cluster)\s*(=|!=)", alert.expr)
    assert re.fullmatch(r"(Checkpoint|CkptObserve)[A-Z]\w+", alert.name)
    assert set(alert.hides) < NAMES - {alert.name}


def sections():
    text = files(Plan())[RUNBOOK]
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def test_runbook_has_a_heading_for_each_alert():
    """And for nothing else."""
    assert set(sections()) == {alert.name for plan in (Plan(), Plan(interval=MINUTE)) for alert in every_alert(plan)}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_runbook_says_what_to_do(name):
    """Meaning, first query, likely causes and remedy; the query and the links lead somewhere."""
    body = sections()[name]
    parts = re.split(r"^\*\*(Meaning|First query|Likely causes|Remedy)\.\*\* ", body, flags=re.MULTILINE)
    assert parts[1::2] == ["Meaning", "First query", "Likely causes", "Remedy"]
    assert all(len(part.split()) >= 4 for part in parts[2::2])
    assert set(re.findall(r"\b(?:checkpoint|ckpt_observe)_[a-z_]+", body)) <= SERIES
    assert set(re.findall(r"\(#(\w+)\)", body)) <= {other.lower() for other in NAMES}


def test_every_rule_links_to_its_heading():
    """In the site's own place for the runbook, if it has one."""
    made = rules(Plan(runbook="https://wiki.example/checkpoints"))
    for rule in (rule for group in made["groups"] for rule in group["rules"]):
        assert rule["annotations"]["runbook_url"] == f"https://wiki.example/checkpoints#{rule['alert'].lower()}"


@pytest.mark.parametrize(("interval", "windows"), [(MINUTE, 4), (10 * MINUTE, 3), (30 * MINUTE, 2), (2 * HOUR, 1), (6 * HOUR, 0), (DAY, 0)])
def test_burn_rates_only_where_the_cadence_carries_them(interval, windows):
    """A window in which fewer than three saves are expected has no rule."""
    assert len(budget_burn(Plan(interval=interval))) == windows


def test_batch_jobs_are_not_missed():
    """Where metrics come and go with the job, their absence is no alarm; all else is the same."""
    assert NAMES - {alert.name for alert in every_alert(Plan(batch=True))} == {"CheckpointMetricsVanished", "CheckpointMetricsAbsent"}


def test_routing():
    """What is hidden is hidden for the same task only; receivers are those of the site."""
    made = routing(Plan(), "http://hooks.example/x/")
    assert [rule["equal"] for rule in made["inhibit_rules"]] == [["job", "instance", "task"]] * 3
    assert [receiver["webhook_configs"][0]["url"] for receiver in made["receivers"]] == [
        f"http://hooks.example/x/{name}" for name in ("ticket", "page", "deadman")
    ]


def test_command_writes_for_a_site(tmp_path, capsys):
    """Files for that interval and objective; `--check` finds one that was edited and one that is missing."""
    out = tmp_path / "rules"
    words = ["rules", "--interval", "10m", "--slo", "0.999", "--runbook", "https://wiki.example/r"]
    assert main([*words, "--out", str(out)]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(str(out / name) for name in files(Plan()))
    assert "https://wiki.example/r#checkpointstale" in (out / RULES).read_text()
    assert main([*words, "--check", str(out)]) == 0
    (out / RULES).write_text("edited")
    (out / RUNBOOK).unlink()
    assert main([*words, "--check", str(out)]) == 1
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [str(out / RULES), str(out / RUNBOOK)]


def test_command_says_what_is_wrong(tmp_path, capsys):
    """A value that cannot be, or a place that cannot be written: one clean line."""
    with pytest.raises(SystemExit, match="2"):
        main(["rules", "--out", str(tmp_path), "--interval", "soon"])
    assert "write it as 90s" in capsys.readouterr().err
    assert main(["rules", "--out", str(tmp_path), "--slo", "99"]) == 2
    assert "such as 0.99" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["rules", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err == f"ckpt-observe: {tmp_path / 'file'}: File exists\n"
