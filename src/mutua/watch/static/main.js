// Which page is shown, and in which theme.

import { h } from "./dom.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";
import { showCompare, showStudy } from "./compare.js";

const content = document.getElementById("content");
const where = document.getElementById("where");
const theme = document.getElementById("theme");
const THEMES = ["system", "light", "dark"];

function remembered() {
  try {
    return localStorage.getItem("mutua-theme") ?? "system";
  } catch {
    return "system";
  }
}

function setTheme(name) {
  const chosen = THEMES.includes(name) ? name : "system";
  document.documentElement.dataset.theme = chosen;
  theme.textContent = `Theme: ${chosen}`;
  theme.dataset.now = chosen;
  try {
    localStorage.setItem("mutua-theme", chosen);
  } catch {
    // a browser that keeps nothing
  }
}

theme.addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(theme.dataset.now) + 1) % THEMES.length]));
setTheme(remembered());

let leave = () => {};

function show() {
  const [, page = "", rest = ""] = /^#\/([a-z]*)\/?(.*)$/.exec(location.hash) ?? [];
  if (location.hash === "#content") return;
  leave();
  content.replaceChildren();
  let ids = [];
  try {
    ids = rest.split(",").filter(Boolean).map(decodeURIComponent);
  } catch {
    ids = [];
  }
  const pages = { run: showRun, study: showStudy, compare: showCompare };
  const known = pages[page] !== undefined && ids.length > 0;
  where.replaceChildren();
  const crumbs = (...parts) => where.replaceChildren(...parts.flatMap(([text, to]) => [
    h("span", { class: "slash", "aria-hidden": "true", text: "/" }),
    to ? h("a", { href: to, text }) : h("span", { class: "here", "aria-current": "page", text }),
  ]));
  leave = (known ? pages[page](content, ids, crumbs) : showList(content, crumbs)) ?? (() => {});
  window.scrollTo(0, 0);
}

window.addEventListener("hashchange", () => {
  show();
  content.focus({ preventScroll: true });
});
show();
