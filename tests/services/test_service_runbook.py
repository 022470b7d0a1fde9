"""Every statement of the runbook that names a query, command or attribute, executed on a machine whose programs are in that trouble."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import alert_cases
import grafana
import processes
import pytest
import runbook_scenes
import telemetry
from processes import eventually
from troubled_machine import Machine

from ckpt_observe.alerts.links import links
from ckpt_observe.alerts.rule_files import RUNBOOK, all_alerts, files
from ckpt_observe.alerts.site import Site
from ckpt_observe.core import Checkpointer
from ckpt_observe.dashboards import dashboards
from ckpt_observe.delivery.outbox import SPOOL_LIMIT
from ckpt_observe.environment import VARIABLES
from ckpt_observe.exporter_selection import EXPORTERS
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import DROP_REASONS
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, PHASES

pytestmark = pytest.mark.services

TEXT = files(Site())[RUNBOOK]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
SECTIONS["introduction"] = TEXT.partition("\n## ")[0]
WORDS = {
    *("critical", "warning", "deadman", "--slo", "--batch", "$task", "$store", "$labels"),
    *("task", "instance", "store", "reason", "exporter"),
    *(*ERROR_CLASSES, *PHASES, *DROP_REASONS, *OPERATIONS, *EXPORTERS),
    *(variable.name for variable in VARIABLES),
}
"""What is a name and not a statement: values of labels, settings and options."""

CHECKS = {}
"""Functions by section and statement, in the order in which they are executed."""

EXPECTED = {
    "CheckpointNeverSucceeded": "never",
    "CheckpointFailing": "failing",
    "CheckpointStale": "stale",
    "CheckpointFailureRatio": "flapping",
    "CheckpointErrorBudgetBurn": "flapping",
    "CheckpointStuck": "stuck",
    "CheckpointInterrupted": "killed",
    "CheckpointCorrupted": "damaged",
    "CheckpointAltered": "altered",
    "CheckpointRestoreFailing": "unreadable",
    "CheckpointGrowing": "growing",
    "CheckpointStorageFilling": "filling",
    "CheckpointSlow": "slow",
}
"""The task that each alert reports."""


SHOWN = {
    "CheckpointNeverSucceeded": ("Consecutive failures", 3, 3),
    "CheckpointFailing": ("Consecutive failures", 3, 3),
    "CheckpointStale": ("Save lateness", 2.5, 10_000),
    "CheckpointFailureRatio": ("Success ratio", 0.5, 0.8),
    "CheckpointErrorBudgetBurn": ("Success ratio", 0.5, 0.8),
    "CheckpointStuck": ("Oldest in flight", 1, 10_000),
    "CheckpointInterrupted": ("Interrupted", 1, 1.5),
    "CheckpointCorrupted": ("Corrupted", 1, 1.5),
    "CheckpointAltered": ("Altered states", 1, 1),
    "CheckpointRestoreFailing": ("Consecutive failed reads", 1, 2),
    "CheckpointGrowing": ("Checkpoint size by task", 4_000_000, 10_000_000),
    "CheckpointStorageFilling": ("Saves that fit", 0, 3),
    "CheckpointSlow": ("Save duration percentiles", runbook_scenes.SLOW, 60),
}
"""The panel that shows the trouble on the dashboard that the alert links to, and the range of its highest value."""


HOUR = 3600
"""Seconds that the dashboards show: with ten minutes, what happened while the machine was set up would be over before the last test."""
DURING_SAVE = {"CheckpointStale": "stuck"}
"""Alerts whose first query asks whether a save is running. In their own scene none is, in this one it is."""


def executes(section, statement="query"):
    """Mark a function that executes a statement of a section; `query` is its first query."""

    def decorate(function):
        CHECKS.setdefault(section, {})[statement] = function
        return function

    return decorate


def query_of(section):
    [query] = re.findall(r"```promql\n(.*?)```", SECTIONS[section], re.DOTALL)
    return query


def statements_of(section):
    text = re.sub(r"```.*?```", "", SECTIONS[section], flags=re.DOTALL)
    return {" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text)} - WORDS


@pytest.mark.parametrize("section", SECTIONS)
def test_every_statement_is_executed(section):
    """Each query, command, attribute and call that a section names has a function below, and there is no function for anything else."""
    queries = {"query"} if section != "introduction" else set()
    assert statements_of(section) | queries == set(CHECKS[section])


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine on which every scene has got into its trouble."""
    with Machine(tmp_path_factory.mktemp("machine"), batch=True) as machine:
        machine.start("keeper")
        machine.wait_until_done("keeper")
        for scene in runbook_scenes.SCENES:
            machine.start(scene)
        for scene in runbook_scenes.SCENES:
            machine.wait_until_done(scene)
        machine.go_on_when("slow", 'checkpoint_operations_total{operation="save", outcome="ok", task="slow"} == 1')
        machine.go_on("dropped")
        machine.go_on_when("killed", 'checkpoint_operations_total{operation="save", outcome="ok", task="killed"} == 1')
        for scene in ("damaged", "checked"):
            machine.go_on_when(scene, f'checkpoint_corruption_total{{operation="load", task="{scene}"}} == 0')
        machine.go_on_when("unreadable", 'checkpoint_consecutive_failures{operation="restore", task="unreadable"} == 1')
        machine.go_on_after_failure("flapping", telemetry.SCRAPED)
        recent_saves = (
            f'sum(increase(checkpoint_operation_duration_seconds_count{{operation="save", task="slow"}}[{machine.site.window:g}s]))'
        )
        eventually(lambda: machine.prometheus.query(recent_saves) == {(): 0.0}, "the fast saves are no longer recent", 180)
        machine.go_on("slow")
        machine.time_in_trouble = time.time()
        yield machine


@pytest.mark.parametrize("alert", EXPECTED)
def test_section(machine, alert):
    """The alert fires for the task that is in this trouble, its dashboard shows it, and everything that its section says is so."""
    task = EXPECTED[alert]
    eventually(lambda: machine.has_fired(alert, task=task), f"{alert} of {task} fires", 120)
    urls = links_of(machine, alert, task)
    eventually(lambda: is_shown(machine, urls["dashboard_url"], *SHOWN[alert]), f"{SHOWN[alert]} of {task}", 30)
    assert "traces_url" not in urls or is_traced(machine, urls["traces_url"])
    for statement, check in CHECKS[alert].items():
        if statement == "query":
            query = query_of(alert)
            if alert in DURING_SAVE:
                assert not machine.prometheus.query(query.replace("$task", task))
                answer = machine.prometheus.query(query.replace("$task", DURING_SAVE[alert]), time=machine.time_in_trouble)
            else:
                answer = machine.prometheus.query(query.replace("$task", task))
            check(answer or pytest.fail(f"no answer to {query}"))
        else:
            check(machine, statement.replace("$task", task).replace("$store", machine.store(task)))


def links_of(machine, alert, task):
    """Return the annotations with links of an alert that fired."""
    rule = next(each for each in all_alerts(machine.site) if each.name == alert)
    fired = f'last_over_time(ALERTS{{alertname="{alert}", alertstate="firing", task="{task}"}}[1h])'
    labels = machine.prometheus.samples(fired)[0][0]
    return {name: alert_cases.with_labels(text, labels) for name, text in links(rule, Site(**alert_cases.STACK)).items()}


def is_shown(machine, link, title, low, high):
    """Whether a panel of the dashboard of a link shows a value in the range, with the variables of the link."""
    address = urlsplit(link)
    [dashboard] = [each for each in dashboards().values() if address.path == f"/d/{each['uid']}"]
    [panel] = [panel for panel in grafana.panels(dashboard) if panel["title"] == title]
    selected = {name.removeprefix("var-"): value for name, [value] in parse_qs(address.query).items() if name.startswith("var-")}
    answers = grafana.run_queries(machine.prometheus, dashboard, panel, selected={"window": "5m", **selected}, seconds=HOUR)
    values = grafana.values(panel, answers)
    return bool(values) and low <= max(values.values()) <= high


def is_traced(machine, link):
    """Whether an operation has all tags for which a link searches in Jaeger, where spans of failed operations have the tag `error`."""
    tags = dict(tag.split(":", 1) for tag in parse_qs(urlsplit(link).query)["tag"])
    spans = machine.command("traces", "--task", tags[names.TASK_NAME], "--json").replace("} {", "}\n{").splitlines()
    tagged = [{**span["attributes"], "error": str(span["status"] == "error").lower()} for span in map(json.loads, spans)]
    return any(tags.items() <= {name: str(value) for name, value in span.items()}.items() for span in tagged)


def run(machine, statement, *, codes=(0,), **replacements):
    """Run a command of the runbook. Return its output in one line."""
    words = statement.split()
    assert words[0] == "ckpt-observe"
    return machine.command(*(replacements.get(word, word) for word in words[1:]), codes=codes)


def trace_id(machine, task, *options):
    return machine.command("traces", "--task", task, "--tsv", *options).split()[0]


def attribute(machine, task, name, *options):
    """The values of an attribute on the spans of the newest trace of a task that matches."""
    lines = machine.command("traces", "--task", task, "--last", "--json", *options).replace("} {", "}\n{").splitlines()
    return [span["attributes"][name] for span in map(json.loads, lines) if name in span["attributes"]]


@executes("introduction", "ckpt-observe why")
@executes("introduction", "ckpt-observe why --task $task")
def why(machine, statement):
    text = run(machine, statement if "--task" in statement else f"{statement} --task failing")
    for words in ("failed in write", "The exception was", "Free some space", "The run can continue from its newest good save (step 0)"):
        assert words in text
    assert f"with the store file://{machine.store('failing')}" in text


@executes("introduction", "ckpt-observe traces --task $task --last")
def traces(machine, statement):
    text = run(machine, statement)
    assert "checkpoint.save step 1" in text
    assert "error capacity storage.no_space in write" in text
    assert "No space left on device" in text
    assert "OSError: [Errno 28]" in text


@executes("introduction", "ckpt-observe top --once")
def top(machine, statement):
    text = run(machine, statement)
    assert re.search(r"stale - [\w. ]+ ago", text)
    assert re.search(r"failing - [\w. ]+ ago - [\d.]+ 3 storage.no_space in write", text)


@executes("introduction", "ckpt-observe doctor")
@executes("CkptObserveNotDelivering", "ckpt-observe doctor")
def doctor(machine, statement):
    text = machine.command(*statement.split()[1:], codes=(3,), environ=machine.environ_with_backend)
    assert f"127.0.0.1:{machine.backend}" in text
    assert "Connection refused" in text
    state = re.escape(str(machine.directory / "state"))
    assert re.search(rf"setting CKPT_OBSERVE_DIR {state} \(from CKPT_OBSERVE_DIR\)", text)
    assert re.search(rf"state directory {state} is writable", text)


def test_introduction(machine):
    """The commands of the introduction say what it promises."""
    for statement, check in CHECKS["introduction"].items():
        check(machine, statement.replace("$task", "failing"))


@executes("CheckpointNeverSucceeded")
def never_query(result):
    assert result == {("serialization",): 3.0}


@executes("CheckpointNeverSucceeded", "ckpt-observe why --task $task")
def never_why(machine, statement):
    text = run(machine, statement)
    assert "failed in serialize" in text
    assert "SerializationError: state['socket'] cannot be saved" in text
    machine.go_on("never")
    eventually(lambda: not machine.is_firing("CheckpointNeverSucceeded", task="never"), "the alert ends with the first successful save")


@executes("CheckpointFailing")
def failing_query(result):
    assert [labels[0] for labels in result] == ["capacity"]


@executes("CheckpointStale")
def stale_query(result):
    [seconds] = result.values()
    assert seconds > 1


@executes("CheckpointStale", "task(..., interval=...)")
def stale_interval(machine, _statement):
    assert list(machine.prometheus.query('checkpoint_expected_interval_seconds{task="stale"}').values()) == [1.0]


@executes("CheckpointFailureRatio")
def ratio_query(result):
    assert result.keys() == {("timeout", "file")}


@executes("CheckpointErrorBudgetBurn")
def burn_query(result):
    assert 0.2 < result["flapping",] < 0.5


@executes("CheckpointFailureRatio", "ckpt-observe why --task $task")
def ratio_why(machine, statement):
    assert "The same call may succeed if it is repeated." in run(machine, statement)


@executes("CheckpointFailureRatio", "checkpoint.error.retryable")
def ratio_retryable(machine, statement):
    assert True in attribute(machine, "flapping", statement, "--outcome", "error")


@executes("CheckpointStuck")
def stuck_query(result):
    [seconds] = result.values()
    assert seconds > 1


@executes("CheckpointStuck", "ckpt-observe traces --task $task --outcome running")
def stuck_traces(machine, statement):
    text = run(machine, statement)
    assert re.search(r"save [\w. ]+, in write", text)
    assert trace_id(machine, "stuck")[:12] in text
    assert re.search(r"stuck save [\w. ]+, in write", run(machine, "ckpt-observe top --once")), "what a task is doing now"


@executes("CheckpointStuck", "py-spy dump --pid PID")
def stuck_py_spy(machine, statement):
    pid = machine.programs["stuck"].pid
    assert f"py-spy dump --pid {pid}" in run(machine, f"ckpt-observe why {trace_id(machine, 'stuck')}")
    command = [shutil.which("py-spy") or "py-spy", *statement.replace("PID", str(pid)).split()[1:]]
    assert "wait_for_input" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@executes("CheckpointStuck", "ckpt-observe why ID")
def stuck_why(machine, statement):
    trace, process = trace_id(machine, "stuck"), machine.programs["stuck"]
    text = run(machine, statement, ID=trace)
    assert "and is now in write" in text
    assert f"process {process.pid}" in text
    assert "the usual time is" in text
    process.kill()
    process.wait()
    eventually(lambda: "was interrupted in write" in run(machine, statement, ID=trace), "the phase in which it died")


@executes("CheckpointInterrupted")
def killed_query(result):
    assert [labels for labels in result if "save" in labels]


@executes("CheckpointInterrupted", "kill -9")
def killed_kill(machine, _statement):
    assert machine.programs["killed"].wait(60) == -signal.SIGKILL


@executes("CheckpointInterrupted", "ckpt-observe why --task $task")
def killed_why(machine, statement):
    text = run(machine, statement)
    assert "was interrupted in write" in text
    assert re.search(r"had used up to 1\d\d MB of memory", text), text


@executes("CheckpointInterrupted", "checkpoint.resource.memory_peak")
def killed_memory(machine, statement):
    assert max(attribute(machine, "killed", statement)) > runbook_scenes.LARGE


@executes("CheckpointInterrupted", "ckpt-observe verify $store")
def killed_verify(machine, statement):
    [complete] = Path(machine.store("killed")).rglob("*.ckpt")
    assert complete.stat().st_size > 0
    run(machine, statement)
    content = complete.read_bytes()
    complete.write_bytes(content[:-1])
    run(machine, statement, codes=(3,))
    complete.write_bytes(content)


@executes("CheckpointCorrupted")
def damaged_query(result):
    assert [value for labels, value in result.items() if "load" in labels] == [1.0]


@executes("CheckpointCorrupted", "ckpt-observe verify $store --quarantine")
def damaged_verify(machine, statement):
    run(machine, statement, codes=(3,))
    run(machine, statement)


@executes("CheckpointCorrupted", "ckpt-observe list $store")
def damaged_list(machine, statement):
    [intact] = Path(machine.store("damaged")).rglob("*.ckpt")
    assert intact.stem in run(machine, statement)


@executes("CheckpointCorrupted", "Checkpointer(...).verify(...)")
def damaged_resolved(machine, _statement):
    eventually(lambda: machine.is_firing("CheckpointCorrupted", task="checked"), "damage that a verify found")
    assert is_traced(machine, links_of(machine, "CheckpointCorrupted", "checked")["traces_url"])
    machine.command("verify", machine.store("checked"), "--quarantine", codes=(3,))
    for task in ("damaged", "checked"):
        assert machine.is_firing("CheckpointCorrupted", task=task)
        machine.go_on(task)
        eventually(lambda task=task: not machine.is_firing("CheckpointCorrupted", task=task), f"the alert of {task} ends with a good read")


@executes("CheckpointAltered")
def altered_query(result):
    assert [value for labels, value in result.items() if "restore" in labels] == [1.0]


@executes("CheckpointAltered", "ckpt-observe traces --task $task --last")
def altered_traces(machine, statement):
    assert re.search(r"altered:? step", run(machine, statement))


@executes("CheckpointAltered", "checkpoint.altered.keys")
def altered_keys(machine, statement):
    assert attribute(machine, "altered", statement) == [["step"]]


@executes("CheckpointRestoreFailing")
def unreadable_query(result):
    assert [labels for labels in result if "unavailable" in labels and "restore" in labels]


@executes("CheckpointRestoreFailing", "ckpt-observe why --task $task")
def unreadable_why(machine, statement):
    assert "Connection refused" in run(machine, statement)


@executes("CheckpointRestoreFailing", "ckpt-observe list $store")
def unreadable_list(machine, statement):
    [stored] = Path(machine.store("unreadable")).rglob("*.ckpt")
    assert stored.stem in run(machine, statement)
    with Checkpointer(machine.store("unreadable")) as checkpointer:
        assert checkpointer.restore(runbook_scenes.RUN, stored.stem).state == {"step": 0}


@executes("CheckpointGrowing", "ckpt-observe list $store")
def growing_list(machine, statement):
    assert runbook_scenes.RUN in run(machine, statement)


@executes("CheckpointGrowing")
def growing_query(result):
    [factor] = result.values()
    assert factor > 2


@executes("CheckpointGrowing", "ckpt-observe stats $store")
def growing_stats(machine, statement):
    text = run(machine, statement)
    assert "GROWTH" in text
    assert "+2.0 MB" in text
    assert "largest keys: messages" in text


@executes("CheckpointGrowing", "ckpt-observe diff $store ID latest~1 latest")
def growing_diff(machine, statement):
    assert re.search(r"~ messages", run(machine, statement, ID=runbook_scenes.RUN, codes=(3,)))


@executes("CheckpointStorageFilling")
def filling_query(result):
    [saves] = result.values()
    assert saves < 3


@executes("CheckpointStorageFilling", 'checkpoint_storage_kept_bytes{task="$task"}')
def filling_kept(machine, statement):
    [kept_bytes] = machine.prometheus.query(statement).values()
    assert kept_bytes > 0


@executes("CheckpointStorageFilling", "ckpt-observe prune $store --keep-last 3")
def filling_prune(machine, statement):
    store = Path(machine.store("filling"))
    count = sum(path.is_file() for path in store.rglob("*"))
    assert run(machine, statement).count("remove run-1") == 2
    assert sum(path.is_file() for path in store.rglob("*")) == count


@executes("CheckpointStorageFilling", "--yes")
def filling_prune_yes(machine, statement):
    store = Path(machine.store("filling"))
    count = sum(path.is_file() for path in store.rglob("*"))
    machine.command("prune", str(store), "--keep-last", "3", statement)
    assert sum(path.is_file() for path in store.rglob("*")) < count


@executes("CheckpointSlow")
def slow_query(result):
    assert result["write",] == max(result.values())


@executes("CheckpointSlow", 'checkpoint_operation_duration_seconds_bucket{operation="save", task="$task"}')
@executes("CheckpointSlow", "ckpt-observe why ID")
def slow_exemplar(machine, _statement):
    series = machine.prometheus.exemplars('checkpoint_operation_duration_seconds_bucket{operation="save", task="slow"}')
    slowest = max((exemplar for each in series for exemplar in each["exemplars"]), key=lambda exemplar: float(exemplar["value"]))
    assert float(slowest["value"]) > runbook_scenes.SLOW
    text = run(machine, "ckpt-observe why ID", ID=slowest["labels"]["trace_id"])
    assert "times as long as usual" in text
    assert "Most of the difference is in write" in text


@executes("CkptObserveNotDelivering")
def undelivered_query(result):
    assert max(result.values()) > 0


def test_exporter_that_does_not_deliver(machine):
    """While its server is down, the alert fires, the records wait, and `doctor` names the server. (`test_service_outage` brings one back.)"""
    eventually(lambda: machine.has_fired("CkptObserveNotDelivering", exporter="otlp"), "the alert fires", 120)
    undelivered_query(machine.prometheus.query(query_of("CkptObserveNotDelivering")))
    doctor(machine, "ckpt-observe doctor")
    assert f"{SPOOL_LIMIT >> 20} MiB per process" in " ".join(SECTIONS["CkptObserveNotDelivering"].split())


@executes("CkptObserveDropped")
def dropped_query(result):
    assert {labels[-1] for labels in result} == {"cut"}


def test_dropped_records(machine):
    """The alert names the reason, and so does the query."""
    eventually(lambda: machine.has_fired("CkptObserveDropped", reason="cut"), "the alert fires")
    dropped_query(machine.prometheus.query(query_of("CkptObserveDropped")))


@executes("CheckpointWatchdog")
def watchdog_query(result):
    assert result


@executes("CheckpointMetricsAbsent")
def absent_query(result):
    assert result == {(telemetry.SCRAPED,): 1.0}


@executes("CheckpointMetricsAbsent", "curl http://127.0.0.1:9464/metrics")
def absent_curl(machine, statement):
    command = statement.replace("9464", str(machine.prometheus.scraped)).split()
    return "checkpoint_operations_total" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


@executes("CheckpointMetricsVanished")
def vanished_query(result):
    assert list(result.values()) == [0.0]


@executes("CheckpointMetricsVanished", 'time() - last_over_time(checkpoint_last_success_timestamp_seconds{operation="save"}[1d])')
def vanished_age(machine, statement):
    [age] = machine.prometheus.query(statement).values()
    assert age > 0


def test_metrics_that_are_missing(tmp_path):
    """Before a program runs, and after its machine died: the alerts on missing metrics fire, and the watchdog all the time."""
    with Machine(tmp_path, batch=False) as machine:
        eventually(lambda: machine.is_firing("CheckpointMetricsAbsent"), "no metrics yet")
        absent_query(eventually(lambda: machine.prometheus.query(query_of("CheckpointMetricsAbsent")), "the target is scraped"))
        curl = "curl http://127.0.0.1:9464/metrics"
        assert not absent_curl(machine, curl)
        machine.start("stale")
        machine.wait_until_done("stale")
        eventually(lambda: absent_curl(machine, curl), "the program serves its metrics")
        eventually(lambda: machine.prometheus.query('checkpoint_tasks_in_flight{task="stale"} == 1'), "the task is known to run")
        eventually(lambda: machine.prometheus.query('checkpoint_last_success_timestamp_seconds{task="stale"}'), "its save is known")
        machine.programs["stale"].send_signal(signal.SIGKILL)
        eventually(lambda: machine.is_firing("CheckpointMetricsVanished", task="stale"), "its metrics vanish")
        vanished_query(machine.prometheus.query(query_of("CheckpointMetricsVanished")))
        vanished_age(machine, *(statements_of("CheckpointMetricsVanished") & set(CHECKS["CheckpointMetricsVanished"])))
        watchdog_query(machine.prometheus.query(query_of("CheckpointWatchdog")))


def test_there_is_a_section_for_each_alert():
    """Control: the sections that tests execute are those of the alerts."""
    assert set(CHECKS) - {"introduction"} == {alert.name for site in (Site(), Site(interval=60)) for alert in all_alerts(site)}
    assert processes.program("promtool")
