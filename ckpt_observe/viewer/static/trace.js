// One trace as a waterfall: a row per task, operation and phase. Bars of running operations grow.

import { element, facts, table } from "./dom.js";
import { bytes, duration, seconds, time, title, value } from "./format.js";
import { checkpointLink, outcome, traceLink } from "./operations.js";
import { timeScale } from "./time_scale.js";

const MOST_ROWS = 2000;
const FAILED = new Set(["error", "interrupted"]);
const HELP = "Keys: ↑ ↓ move, Enter details, E next error, F fold gaps, + − zoom, ← → pan, 0 reset";

export async function tracePage(load, [traceId], parameters, previous) {
  const trace = await load(`traces/${encodeURIComponent(traceId)}`);
  const view = previous?.view?.traceId === trace.summary.trace_id ? previous.view : newView(trace, parameters.span);
  const page = { view, node: element("div", {}) };
  page.update = (change) => ![...change.finished, ...change.running].some((row) => row.trace_id === trace.summary.trace_id) && !isRunning(trace);
  page.draw = () => draw(page, trace);
  page.shown = () => document.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  page.draw();
  return page;
}

// Errors first: without a span in the address, the first failed one is selected.
const newView = (trace, span) => ({
  traceId: trace.summary.trace_id,
  selected: span ?? trace.operations.find((operation) => FAILED.has(operation.outcome))?.span_id ?? null,
  folds: true, zoom: 1, offset: 0,
});
const isRunning = (trace) => trace.operations.some((operation) => operation.end_unix_nano === null);

function draw(page, trace) {
  const { view } = page;
  const rows = flatten(trace.operations);
  const now = Date.now() * 1e6;
  const leaves = rows.filter((row) => !row.hasChildren).map((row) => [row.span.start_unix_nano, row.span.end_unix_nano ?? now]);
  const scale = timeScale(leaves.length ? leaves : rows.map((row) => [row.span.start_unix_nano, row.span.end_unix_nano ?? now]), view);
  const selected = rows.find((row) => row.span.span_id === view.selected);
  page.node.replaceChildren(...[
    element("h1", {}, trace.summary.name),
    facts([["Trace", trace.summary.trace_id], ["Started", time(trace.summary.start_unix_nano)],
      ["Operations", trace.summary.operations], ["Failed", trace.summary.errors || ""], ["Interrupted", trace.summary.interrupted || ""]]),
    controls(page, rows),
    element("div.waterfall", { role: "treegrid", "aria-label": "Spans by time", tabindex: "0", id: "waterfall", onkeydown: (event) => press(event, page, rows) },
      rows.slice(0, MOST_ROWS).map((row) => waterfallRow(row, scale, view, now, page))),
    rows.length > MOST_ROWS && element("p.note", {}, `${rows.length - MOST_ROWS} more spans are not shown.`),
    ranksTable(trace.operations),
    selected ? details(selected) : element("p.note", {}, "Select a row for its attributes."),
  ].filter(Boolean));
}

// The rows in the order of the tree: each operation, then its phases and the operations inside.
function flatten(operations) {
  const critical = criticalPath(operations);
  const children = new Map();
  const add = (span, parent) => (children.get(parent) ?? children.set(parent, []).get(parent)).push(span);
  const ids = new Set(operations.flatMap((operation) => [operation.span_id, ...operation.phases.map((phase) => phase.span_id)]));
  for (const operation of operations) {
    add(operation, ids.has(operation.parent_span_id) ? operation.parent_span_id : "");
    for (const phase of operation.phases) add({ ...phase, kind: "phase", operation }, ids.has(phase.parent_span_id) ? phase.parent_span_id : operation.span_id);
  }
  const rows = [];
  const visit = (parent, depth) => {
    for (const span of (children.get(parent) ?? []).sort((a, b) => a.start_unix_nano - b.start_unix_nano)) {
      rows.push({ span, depth, isCritical: critical.has(span.span_id), hasChildren: children.has(span.span_id) });
      if (depth < 64) visit(span.span_id, depth + 1);
    }
  };
  visit("", 0);
  return rows;
}

// The operations that determine how long the trace took: from its end backwards, always the one that ended last before.
function criticalPath(operations) {
  const path = new Set();
  const inner = operations.filter((operation) => operation.kind === "operation" && operation.end_unix_nano !== null);
  let limit = Infinity;
  for (;;) {
    const last = inner.filter((operation) => operation.end_unix_nano <= limit && !path.has(operation.span_id)).sort((a, b) => b.end_unix_nano - a.end_unix_nano)[0];
    if (!last) return path;
    path.add(last.span_id);
    limit = last.start_unix_nano;
  }
}

function waterfallRow(row, scale, view, now, page) {
  const { span, depth } = row;
  const place = (at) => (at - view.offset) * view.zoom * 100;
  const left = place(scale.position(span.start_unix_nano));
  const right = place(scale.position(span.end_unix_nano ?? now));
  const isSelected = span.span_id === view.selected;
  const step = span.kind === "operation" ? span.attributes["checkpoint.step"] : undefined;
  const name = span.kind === "phase" ? span.name : title(span) + (step === undefined ? "" : ` step ${step}`);
  return element("div.row", {
    role: "row", "aria-level": depth + 1, "aria-selected": String(isSelected), "data-span": span.span_id, onclick: () => select(page, span.span_id),
  },
  element("span.label", { role: "gridcell", style: { "padding-left": `${depth * 1.1}rem` } }, name, row.isCritical && element("abbr", { title: "On the critical path" }, " ◆")),
  element("span.track", { role: "gridcell" },
    scale.gaps.map(([from, to, start, end]) => element("span.gap", { title: `${duration((end - start) / 1e9)} without activity`, style: { left: `${place(from)}%`, width: `${(to - from) * view.zoom * 100}%` } })),
    element("span.bar", { "data-outcome": span.outcome, style: { left: `${left}%`, width: `max(3px, ${right - left}%)` } })),
  element("span.time", { role: "gridcell" }, span.end_unix_nano === null ? element("span", { "data-start": span.start_unix_nano }, duration(seconds(span, Date.now()))) : duration(seconds(span))),
  element("span.state", { role: "gridcell" }, outcome(span.kind === "phase" ? { ...span, phase: null } : { ...span, phase: phaseOf(span) })));
}

function phaseOf(operation) {
  if (operation.end_unix_nano !== null) return operation.attributes["checkpoint.error.phase"] ?? null;
  return operation.phases.filter((phase) => phase.end_unix_nano === null).at(-1)?.name ?? null;
}

function select(page, spanId) {
  page.view.selected = spanId;
  page.draw();
  document.getElementById("waterfall")?.focus({ preventScroll: true });
  document.querySelector(`[data-span="${CSS.escape(spanId)}"]`)?.scrollIntoView({ block: "nearest" });
}

function controls(page, rows) {
  const change = (action) => () => { action(page.view); page.draw(); };
  return element("div.controls", {},
    element("button", { type: "button", onclick: () => nextError(page, rows) }, "Next error"),
    element("button", { type: "button", "aria-pressed": String(page.view.folds), onclick: change((view) => { view.folds = !view.folds; }) }, "Fold gaps"),
    element("button", { type: "button", onclick: change((view) => zoom(view, 2)), "aria-label": "Zoom in" }, "+"),
    element("button", { type: "button", onclick: change((view) => zoom(view, 0.5)), "aria-label": "Zoom out" }, "−"),
    element("span.note", {}, HELP));
}

function zoom(view, factor) {
  view.zoom = Math.min(Math.max(view.zoom * factor, 1), 4096);
  pan(view, 0);
}

function pan(view, share) {
  view.offset = Math.min(Math.max(view.offset + share / view.zoom, 0), 1 - 1 / view.zoom);
}

function nextError(page, rows) {
  const errors = rows.filter(({ span }) => FAILED.has(span.outcome));
  const at = errors.findIndex(({ span }) => span.span_id === page.view.selected);
  if (errors.length) select(page, errors[(at + 1) % errors.length].span.span_id);
}

function press(event, page, rows) {
  const at = rows.findIndex(({ span }) => span.span_id === page.view.selected);
  const move = (step) => select(page, rows[Math.min(Math.max(at + step, 0), rows.length - 1)].span.span_id);
  const actions = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), Home: () => move(-rows.length), End: () => move(rows.length),
    e: () => nextError(page, rows),
    f: () => { page.view.folds = !page.view.folds; page.draw(); },
    "+": () => { zoom(page.view, 2); page.draw(); }, "-": () => { zoom(page.view, 0.5); page.draw(); },
    ArrowLeft: () => { pan(page.view, -0.2); page.draw(); }, ArrowRight: () => { pan(page.view, 0.2); page.draw(); },
    0: () => { Object.assign(page.view, { zoom: 1, offset: 0 }); page.draw(); },
    Enter: () => document.getElementById("details")?.focus(),
  };
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey || !rows.length) return;
  event.preventDefault();
  action();
  document.getElementById(event.key === "Enter" ? "details" : "waterfall")?.focus({ preventScroll: true });
}

function ranksTable(operations) {
  const ranked = operations.filter((operation) => operation.kind === "operation" && operation.attributes["checkpoint.rank"] !== undefined);
  if (new Set(ranked.map((operation) => operation.attributes["checkpoint.rank"])).size < 2) return null;
  const phases = [...new Set(ranked.flatMap((operation) => operation.phases.map((phase) => phase.name)))];
  const phaseTime = (operation, name) => operation.phases.filter((phase) => phase.name === name).reduce((sum, phase) => sum + seconds(phase, Date.now()), 0);
  const order = ranked.sort((a, b) => a.start_unix_nano - b.start_unix_nano || a.attributes["checkpoint.rank"] - b.attributes["checkpoint.rank"]);
  return element("section", {}, table("Ranks side by side", ["Rank", "Operation", "Outcome", "Duration", "Size", ...phases], order.map((operation) => [
    operation.attributes["checkpoint.rank"], traceLink(operation), outcome({ ...operation, phase: phaseOf(operation) }), duration(seconds(operation, Date.now())),
    bytes(operation.attributes["checkpoint.size.stored"]), ...phases.map((name) => duration(phaseTime(operation, name) || null)),
  ])));
}

function details({ span }) {
  const attributes = Object.entries(span.attributes).sort(([a], [b]) => (a < b ? -1 : 1));
  return element("section.details", { id: "details", tabindex: "-1", "aria-label": "Selected span" },
    element("h2", {}, span.kind === "phase" ? span.name : title(span)),
    element("p", {}, outcome({ ...span, phase: null }), ` · ${duration(seconds(span, Date.now()))} · started ${time(span.start_unix_nano)}`,
      span.kind === "operation" && [" · ", checkpointLink(span, "checkpoint page")]),
    (span.links ?? []).map((link) => element("p", {}, element("a", { href: `#/trace/${link.trace_id}?span=${link.span_id}` }, "Go to the save that it came from"))),
    span.events.map((event) => element("p.error", {}, `${event.name}: ${Object.entries(event.attributes).map(([name, content]) => `${name}=${value(content)}`).join(" ")}`)),
    facts(attributes.map(([name, content]) => [name, value(content)])));
}
