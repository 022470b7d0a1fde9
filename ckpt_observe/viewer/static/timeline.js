// The newest operations of each task on one axis of time, gaps folded.

import { element, svg } from "./dom.js";
import { duration, MEANINGS, seconds, time, title } from "./format.js";
import { emptyState, taskName } from "./operations.js";
import { timeScale } from "./time_scale.js";

const [WIDTH, LANE, LABEL] = [960, 34, 220];

export async function timelinePage(load, parts, parameters) {
  const data = await load("operations", parameters);
  if (!data.operations.length) return { node: element("div", {}, element("h1", {}, "Timeline"), emptyState()) };
  const now = Date.now();
  const lanes = Map.groupBy ? Map.groupBy(data.operations, taskName) : groupBy(data.operations);
  const scale = timeScale(data.operations.map((row) => [row.start_unix_nano, row.end_unix_nano ?? now * 1e6]));
  const x = (at) => LABEL + scale.position(at) * (WIDTH - LABEL - 10);
  const first = Math.min(...data.operations.map((row) => row.start_unix_nano));
  const last = Math.max(...data.operations.map((row) => row.end_unix_nano ?? now * 1e6));
  return {
    node: element("div", {}, element("h1", {}, "Timeline"),
      element("p.note", {}, `${data.operations.length} operations from ${time(first)} to ${time(last)}. Hatched: nothing happened for a long time.`),
      svg("svg.timeline", { viewBox: `0 0 ${WIDTH} ${lanes.size * LANE + 10}`, role: "group", "aria-label": "Operations by task and time" },
        svg("defs", {}, svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 0, y1: 0, x2: 0, y2: 6 }))),
        scale.gaps.map(([, , start, end]) => svg("rect.gap", { x: x(start), y: 0, width: Math.max(1, x(end) - x(start)), height: lanes.size * LANE, fill: "url(#hatch)" }, svg("title", {}, `${duration((end - start) / 1e9)} without activity`))),
        [...lanes].map(([name, rows], index) => lane(name, rows, index * LANE, x, now)))),
  };
}

function lane(name, rows, top, x, now) {
  return svg("g", {}, svg("text", { x: 0, y: top + 21 }, name.length > 30 ? `${name.slice(0, 29)}…` : name),
    rows.map((row) => {
      const end = row.end_unix_nano ?? now * 1e6;
      const label = `${title(row)} ${MEANINGS[row.outcome]?.[1] ?? row.outcome}, ${duration(seconds(row, now))}, ${time(row.start_unix_nano)}`;
      const isFailed = row.outcome === "error" || row.outcome === "interrupted";
      return svg("a", { href: `#/trace/${row.trace_id}?span=${row.span_id}`, "aria-label": label },
        svg("rect.bar", { "data-outcome": row.outcome, x: x(row.start_unix_nano), y: top + (isFailed ? 2 : 8), width: Math.max(3, x(end) - x(row.start_unix_nano)), height: isFailed ? 28 : 16 }, svg("title", {}, label)));
    }));
}

function groupBy(rows) {
  const lanes = new Map();
  for (const row of rows) (lanes.get(taskName(row)) ?? lanes.set(taskName(row), []).get(taskName(row))).push(row);
  return lanes;
}
