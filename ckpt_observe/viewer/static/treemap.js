// Rectangles whose areas are proportional to sizes. The list is cut in two halves of similar weight, again and again.

import { svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 240;

export function treemap(entries, describe) {
  const boxes = [];
  split(entries.filter(([, size]) => size > 0), 0, 0, WIDTH, HEIGHT, boxes);
  return svg("svg.treemap", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Sizes by key: ${entries.slice(0, 5).map(([name, size]) => describe(name, size)).join("; ")}` },
    boxes.map(({ name, size, x, y, width, height }, index) => svg("g", { "data-key": name },
      svg(`rect.shade-${index % 6}`, { x, y, width, height }, svg("title", {}, describe(name, size))),
      width > 60 && height > 18 && svg("text", { x: x + 6, y: y + 15 }, fit(name, width)))));
}

const fit = (name, width) => (name.length * 7.5 > width - 12 ? `${name.slice(0, Math.max(1, Math.floor((width - 12) / 7.5) - 1))}…` : name);

function split(entries, x, y, width, height, boxes) {
  if (!entries.length) return;
  if (entries.length === 1) return void boxes.push({ name: entries[0][0], size: entries[0][1], x, y, width, height });
  const total = entries.reduce((sum, [, size]) => sum + size, 0);
  let count = 0;
  let weight = 0;
  do weight += entries[count++][1]; while (count < entries.length - 1 && weight + entries[count][1] / 2 < total / 2);
  const share = weight / total;
  if (width >= height) {
    split(entries.slice(0, count), x, y, width * share, height, boxes);
    split(entries.slice(count), x + width * share, y, width * (1 - share), height, boxes);
  } else {
    split(entries.slice(0, count), x, y, width, height * share, boxes);
    split(entries.slice(count), x, y + height * share, width, height * (1 - share), boxes);
  }
}
