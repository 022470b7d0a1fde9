// The frame of all pages: navigation, live updates, theme. A page is a function that returns its content and reacts to updates.

import { Live, load } from "./api.js";
import { element } from "./dom.js";
import { checkpointPage } from "./checkpoint.js";
import { historyPage } from "./history.js";
import { librariesPage } from "./libraries.js";
import { overviewPage } from "./overview.js";
import { timelinePage } from "./timeline.js";
import { tracePage } from "./trace.js";

// Path, title, page, and whether the navigation has it. A page gets the parts of its address after the first, and its parameters.
const PAGES = {
  overview: ["Overview", overviewPage, true],
  history: ["History", historyPage, true],
  timeline: ["Timeline", timelinePage, true],
  libraries: ["Libraries", librariesPage, true],
  trace: ["Trace", tracePage, false],
  checkpoint: ["Checkpoint", checkpointPage, false],
};
const REFRESH_MILLISECONDS = 400;

const main = document.getElementById("main");
let current = null;
let generation = 0;
let refreshing = null;

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { name: Object.hasOwn(PAGES, parts[0] ?? "") ? parts[0] : "overview", parts: parts.slice(1), parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a bare percent sign
  }
}

async function show({ keepsFocus = false } = {}) {
  const { name, parts, parameters } = address();
  const [title, page, isListed] = PAGES[name];
  const mine = ++generation;
  document.title = `${title} · Checkpoints`;
  for (const link of document.querySelectorAll("#navigation a")) {
    const isCurrent = link.getAttribute("href") === `#/${name}` && isListed;
    isCurrent ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  let content;
  try {
    content = await page(load, parts, parameters, keepsFocus ? current : null);
  } catch (error) {
    content = { node: element("section", {}, element("h1", {}, title), element("p.problem", { role: "alert" }, error.message)) };
  }
  if (mine !== generation) return;
  const focused = keepsFocus && document.activeElement?.id;
  const position = keepsFocus ? scrollY : 0;
  current = content;
  main.replaceChildren(content.node);
  main.dataset.page = name;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  else if (!keepsFocus && location.hash) main.focus({ preventScroll: true });
  scrollTo(0, position);
  if (!keepsFocus) content.shown?.();
}

function update(change) {
  if (change.error) return setState("problem", change.error);
  setState("live");
  if (!current) return;
  if (!change.is_incomplete && current.update && current.update(change)) return;
  clearTimeout(refreshing); // several updates at once are one refresh
  refreshing = setTimeout(() => show({ keepsFocus: true }), REFRESH_MILLISECONDS);
}

const STATES = { live: "● live", paused: "‖ paused", offline: "○ not connected", problem: "! problem" };

function setState(state, detail = "") {
  const status = document.getElementById("live");
  const text = detail ? `${STATES[state]}: ${detail}` : STATES[state];
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

document.getElementById("navigation").append(...Object.entries(PAGES).filter(([, page]) => page[2]).map(
  ([name, [title]]) => element("a", { href: `#/${name}` }, title)));

const live = new Live(update, setState);
document.getElementById("pause").addEventListener("click", (event) => {
  const isPaused = event.currentTarget.getAttribute("aria-pressed") !== "true";
  event.currentTarget.setAttribute("aria-pressed", String(isPaused));
  event.currentTarget.textContent = isPaused ? "Resume" : "Pause";
  live.setPaused(isPaused);
  if (!isPaused) show({ keepsFocus: true });
});

const THEMES = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  localStorage.setItem("theme", theme);
}
themeButton.addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");

addEventListener("hashchange", () => show());
show();
