// One checkpoint: summary, sizes by key, growth over the run, and the difference to another save.

import { element, facts, svg, table } from "./dom.js";
import { bytes, duration, seconds, time, value } from "./format.js";
import { checkpointLink, outcome, traceLink } from "./operations.js";
import { treemap } from "./treemap.js";

export async function checkpointPage(load, [traceId, spanId], parameters) {
  const data = await load(`checkpoints/${encodeURIComponent(traceId)}/${encodeURIComponent(spanId)}`);
  const { operation, history } = data;
  const self = history.find((save) => save.operation.span_id === spanId);
  const other = history.find((save) => save.operation.span_id === parameters.with) ?? previous(history, self);
  const attributes = operation.attributes;
  return {
    node: element("div", {},
      element("h1", {}, attributes["checkpoint.id"] ?? `checkpoint.${operation.name}`),
      element("p", {}, traceLink(operation, "Show in its trace"), " · ", outcome({ ...operation, phase: attributes["checkpoint.error.phase"] })),
      data.advice && element("p.problem", {}, data.advice),
      facts([["Operation", operation.name], ["Task", attributes["checkpoint.task.name"]], ["Run", attributes["checkpoint.task.id"]],
        ["Step", attributes["checkpoint.step"]], ["Library", attributes["checkpoint.system"]], ["Store", attributes["checkpoint.location"] ?? attributes["checkpoint.store"]],
        ["Serialized", bytes(attributes["checkpoint.size.serialized"])], ["Stored", bytes(attributes["checkpoint.size.stored"])],
        ["Compression", attributes["checkpoint.compression.ratio"] && `${attributes["checkpoint.compression.codec"] ?? ""} x${attributes["checkpoint.compression.ratio"]}`],
        ["Duration", duration(seconds(operation, Date.now()))], ["Started", time(operation.start_unix_nano)], ["Digest", attributes["checkpoint.digest"]]]),
      self && sizes(self),
      history.length > 1 && growth(history, spanId),
      self && other && difference(self, other, history),
      element("section", {}, element("h2", {}, "All attributes"), facts(Object.entries(attributes).sort().map(([name, content]) => [name, value(content)])))),
  };
}

const previous = (history, self) => history[history.indexOf(self) - 1];

function sizes(save) {
  const entries = Object.entries(save.keys).sort(([, a], [, b]) => b - a);
  if (!entries.length) return element("p.note", {}, "The library does not report sizes by key.");
  const listed = entries.reduce((sum, [, size]) => sum + size, 0);
  const rest = Math.max(0, (save.serialized_bytes ?? 0) - listed);
  const all = rest ? [...entries, ["(other)", rest]] : entries;
  const total = listed + rest;
  return element("section", {}, element("h2", {}, "Sizes by key"),
    treemap(all, (name, size) => `${name}: ${bytes(size)}, ${((100 * size) / total).toFixed(0)} %`),
    table("Keys, largest first", ["Key", "Size", "Share"], all.map(([name, size]) => [name, bytes(size), `${((100 * size) / total).toFixed(1)} %`])));
}

// Stored size of each save of the run. Every point is a link to its checkpoint.
function growth(history, spanId) {
  const points = history.filter((save) => save.operation.stored_bytes !== null);
  if (points.length < 2) return null;
  const [width, height, margin] = [720, 160, 8];
  const start = points[0].operation.start_unix_nano;
  const span = Math.max(1, points.at(-1).operation.start_unix_nano - start);
  const most = Math.max(1, ...points.map((save) => save.operation.stored_bytes));
  const x = (save) => margin + ((save.operation.start_unix_nano - start) / span) * (width - 2 * margin);
  const y = (save) => height - margin - (save.operation.stored_bytes / most) * (height - 2 * margin);
  const label = (save) => `${save.operation.step === null ? time(save.operation.start_unix_nano) : `step ${save.operation.step}`}: ${bytes(save.operation.stored_bytes)}`;
  return element("section", {}, element("h2", {}, "Growth over the run"),
    svg("svg.growth", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Stored size of ${points.length} saves, up to ${bytes(most)}` },
      svg("polyline", { points: points.map((save) => `${x(save)},${y(save)}`).join(" ") }),
      points.map((save) => svg("a", { href: `#/checkpoint/${save.operation.trace_id}/${save.operation.span_id}`, "aria-label": label(save) },
        svg(save.operation.span_id === spanId ? "circle.current" : "circle", { cx: x(save), cy: y(save), r: 5 }, svg("title", {}, label(save)))))),
    element("p.note", {}, `From ${bytes(points[0].operation.stored_bytes)} to ${bytes(points.at(-1).operation.stored_bytes)} in ${points.length} saves.`));
}

function difference(self, other, history) {
  const names = [...new Set([...Object.keys(self.keys), ...Object.keys(other.keys)])];
  const changes = names.map((name) => [name, other.keys[name] ?? null, self.keys[name] ?? null])
    .sort((a, b) => Math.abs((b[2] ?? 0) - (b[1] ?? 0)) - Math.abs((a[2] ?? 0) - (a[1] ?? 0)));
  const label = (save) => (save.operation.step === null ? save.operation.checkpoint_id ?? time(save.operation.start_unix_nano) : `step ${save.operation.step}`);
  const choice = element("select", { id: "other", onchange: (event) => { location.hash = `#/checkpoint/${self.operation.trace_id}/${self.operation.span_id}?with=${event.currentTarget.value}`; } },
    history.filter((save) => save !== self).map((save) => element("option", { value: save.operation.span_id, selected: save === other }, label(save))));
  const kind = (before, after) => (before === null ? "added" : after === null ? "removed" : after > before ? "grew" : after < before ? "shrank" : "same size");
  return element("section", {}, element("h2", {}, "Difference in size"),
    element("p", {}, element("label", { for: "other" }, "Compared with "), choice, " ", checkpointLink(other.operation, "open it")),
    table(`Keys of ${label(self)} compared with ${label(other)}`, ["Key", "Before", "After", "Change"], changes.map(([name, before, after]) => [
      name, bytes(before), bytes(after), [kind(before, after), after !== before && ` by ${bytes(Math.abs((after ?? 0) - (before ?? 0)))}`]])));
}
