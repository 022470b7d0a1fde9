// All operations with filters: each facet counts its values and narrows the list.

import { element } from "./dom.js";
import { emptyState, operationTable } from "./operations.js";

const FACETS = { operation: "Operation", outcome: "Outcome", task_name: "Task", system: "Library", error_code: "Error" };
const TYPING_MILLISECONDS = 250;

export async function historyPage(load, parts, parameters) {
  const data = await load("operations", parameters);
  const isFiltered = Object.values(parameters).some(Boolean);
  const shown = data.operations.length < data.considered ? `the newest ${data.operations.length} of ${data.considered} matches` : `${data.considered} matches`;
  return {
    node: element("div", {},
      element("h1", {}, "History"),
      !data.considered && !isFiltered ? emptyState() : element("div.columns", {},
        element("aside", { "aria-label": "Filters" },
          searchField(parameters),
          isFiltered && element("p", {}, element("a", { href: "#/history" }, "Remove all filters")),
          Object.entries(FACETS).map(([name, title]) => facet(name, title, data.facets[name] ?? {}, parameters))),
        element("section", {}, data.considered ? operationTable(`Operations: ${shown}`, data.operations)
          : element("p", {}, "No operation matches these filters.")))),
  };
}

function searchField(parameters) {
  let typing = null;
  return element("p", {}, element("label", { for: "search" }, "Search id, name or error"),
    element("input", {
      id: "search", type: "search", value: parameters.text ?? "", autocomplete: "off",
      oninput: (event) => {
        const text = event.currentTarget.value;
        clearTimeout(typing);
        typing = setTimeout(() => { location.hash = withParameter(parameters, "text", text); }, TYPING_MILLISECONDS);
      },
    }));
}

function facet(name, title, counts, parameters) {
  const entries = Object.entries(counts);
  if (!entries.length) return null;
  return element("fieldset", {}, element("legend", {}, title), element("ul", {}, entries.map(([value, count]) => {
    const isSelected = parameters[name] === value;
    const href = withParameter(parameters, name, isSelected ? "" : value);
    return element("li", {}, element("a", { href, "aria-current": isSelected ? "true" : null }, value), ` ${count}`);
  })));
}

function withParameter(parameters, name, value) {
  const chosen = Object.entries({ ...parameters, [name]: value }).filter(([, text]) => text);
  return `#/history?${new URLSearchParams(chosen)}`;
}
