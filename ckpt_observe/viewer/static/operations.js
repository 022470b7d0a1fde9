// Parts that several pages show: the outcome of an operation, links to it, and lists.

import { element, table } from "./dom.js";
import { ago, bytes, duration, MEANINGS, seconds, time, title } from "./format.js";

// A symbol, a word and a colour: none of them alone carries the meaning.
export function outcome(row) {
  const [symbol, word] = MEANINGS[row.outcome] ?? ["?", row.outcome];
  const phase = row.phase ? ` in ${row.phase}` : "";
  return element("span.outcome", { "data-outcome": row.outcome }, element("span", { "aria-hidden": "true" }, symbol), ` ${word}${phase}`);
}

export const traceLink = (row, text) => element("a", { href: `#/trace/${row.trace_id}?span=${row.span_id}` }, text ?? title(row));

export const checkpointLink = (row, text) => element("a", { href: `#/checkpoint/${row.trace_id}/${row.span_id}` }, text);

export const taskName = (row) => row.task_title + (row.task_id && row.task_id !== row.task_title ? ` (${row.task_id})` : "");

export function operationTable(caption, rows) {
  const now = Date.now();
  return table(caption, ["Operation", "Outcome", "Task", "Step", "Size", "Duration", "Started", "Checkpoint"], rows.map((row) => [
    traceLink(row),
    [outcome(row), row.error_code && element("span.code", {}, ` ${row.error_code}`)],
    taskName(row),
    row.step ?? "",
    bytes(row.stored_bytes),
    element("span", running(row), duration(seconds(row, now))),
    element("time", { datetime: new Date(row.start_unix_nano / 1e6).toISOString(), title: time(row.start_unix_nano) }, ago(row.start_unix_nano)),
    row.kind === "operation" ? checkpointLink(row, row.checkpoint_id ?? "details") : "",
  ]));
}

// Properties of an element that shows a duration which still grows: `grow` changes its text.
const running = (row) => (row.end_unix_nano === null ? { "data-start": row.start_unix_nano } : {});

export function growDurations() {
  const now = Date.now();
  for (const node of document.querySelectorAll("[data-start]")) {
    node.textContent = duration(seconds({ start_unix_nano: Number(node.dataset.start), end_unix_nano: null }, now));
  }
}
setInterval(growDurations, 1000);

export function emptyState() {
  return element("section.empty", {},
    element("h2", {}, "Nothing recorded yet"),
    element("p", {}, "Run a program that saves checkpoints under observation. It appears here while it runs:"),
    element("pre", {}, "ckpt-observe run -- python your_program.py"),
    element("p", {}, "Or add one line to the program:"),
    element("pre", {}, "import ckpt_observe.auto"),
    element("p", {}, "To see an example at once, run ", element("code", {}, "ckpt-observe demo"), ". ",
      element("a", { href: "#/libraries" }, "Libraries"), " shows what is observed and which programs recorded nothing."));
}
