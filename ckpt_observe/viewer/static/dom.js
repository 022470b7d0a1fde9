// Creates elements. Texts become text nodes and never markup, so nothing that a program recorded can be executed.

const SVG = "http://www.w3.org/2000/svg";

// element("a.link", {href: "#/x", onclick: f}, "text", child, ...). Children that are null or false are left out.
export function element(selector, properties = {}, ...children) {
  const [name, ...classes] = selector.split(".");
  return fill(document.createElement(name), classes, properties, children);
}

export function svg(selector, properties = {}, ...children) {
  const [name, ...classes] = selector.split(".");
  return fill(document.createElementNS(SVG, name), classes, properties, children);
}

function fill(node, classes, properties, children) {
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function table(caption, headers, rows) {
  return element("div.scroll", { tabindex: "0", role: "region", "aria-label": caption },
    element("table", {},
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, headers.map((header) => element("th", { scope: "col" }, header)))),
      element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell)))))));
}

export function facts(pairs) {
  return element("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}
