// The first page: can I recover, and to what point; how much work is at risk; what failed last, and why.

import { element, table } from "./dom.js";
import { ago, duration, time } from "./format.js";
import { checkpointLink, emptyState, operationTable, outcome, taskName, traceLink } from "./operations.js";

export async function overviewPage(load) {
  const data = await load("overview");
  const isEmpty = !data.considered && !data.running.length;
  return {
    node: element("div", {},
      element("h1", {}, "Overview"),
      isEmpty ? emptyState() : [
        element("p.verdict", {}, verdict(data)),
        data.running.length > 0 && element("section", {}, operationTable("Running now", data.running)),
        element("section", {}, table("Recovery by run", ["Task", "Recoverable to", "Last attempt", "Work at risk", "Usual interval", "Progress"], data.tasks.map(taskRow))),
        element("section", {}, element("h2", {}, "Last failures"),
          data.failures.length ? element("ul.failures", {}, data.failures.map(failure)) : element("p", {}, "No failure among the newest operations.")),
        element("p.note", {}, `${data.totals.operations} operations in ${data.totals.traces} traces. This page considers the newest ${data.considered}.`),
      ]),
  };
}

function verdict(data) {
  const lost = data.tasks.filter((task) => !task.last_good);
  const failing = data.tasks.filter((task) => task.consecutive_failures > 0 && task.last_good);
  if (lost.length) return `${lost.length} of ${data.tasks.length} runs have no good save: they cannot be recovered.`;
  if (failing.length) return `All ${data.tasks.length} runs can be recovered; in ${failing.length} the newest save failed.`;
  return data.tasks.length ? `All ${data.tasks.length} runs can be recovered, and their newest save succeeded.` : "No save has ended yet.";
}

function taskRow(task) {
  const good = task.last_good;
  return [
    taskName(task),
    good ? [checkpointLink(good, good.step === null ? good.checkpoint_id ?? "checkpoint" : `step ${good.step}`), ` ${ago(good.end_unix_nano)}`]
      : element("strong", {}, "nothing: no good save"),
    [traceLink(task.last_attempt, outcome(task.last_attempt)), task.consecutive_failures > 1 && ` (${task.consecutive_failures} in a row)`],
    task.at_risk_seconds === null ? "not running" : duration(task.at_risk_seconds),
    duration(task.interval_seconds),
    progress(task),
  ];
}

function progress(task) {
  if (!task.progress) return "";
  const { step, total_steps: total, remaining_seconds: remaining } = task.progress;
  const left = task.running && remaining !== null ? `, ${duration(remaining)} left` : "";
  return [element("progress", { max: total, value: step, "aria-label": "Steps" }), ` ${step} of ${total}${left}`];
}

function failure({ operation, impact, advice }) {
  return element("li", {},
    element("p", {}, traceLink(operation), " ", outcome(operation), ` · ${taskName(operation)} · `, element("time", { title: time(operation.end_unix_nano) }, ago(operation.end_unix_nano))),
    operation.error && element("p.error", {}, operation.error),
    impact && element("p", {}, `Impact: ${impact}`),
    advice && element("p", {}, `What to do: ${advice}`));
}
