// All runs and studies below the watched folder.

import { h, keyed, say, set, scroller } from "./dom.js";
import { follow } from "./stream.js";
import { ago, duration, several, withUnit } from "./words.js";

export const idPath = (id) => encodeURIComponent(id);

export function badge(state) {
  return h("span", { class: `badge ${state}`, text: state });
}

// A table of runs, each with a box to choose it for a comparison. `chosen` is a set of ids.
export class RunTable {
  constructor(label, chosen, changed) {
    this.chosen = chosen;
    this.changed = changed;
    this.body = h("tbody", {});
    this.node = scroller(label, h("table", { class: "runs" },
      h("thead", {}, h("tr", {},
        h("th", { scope: "col" }, h("span", { class: "hidden-text", text: "compare" })),
        ...["run", "state", "method", "seed", "round"].map((text) => h("th", { scope: "col", text })),
        ...["clients", "global", "last event"].map((text) => h("th", { scope: "col", class: "number", text })))),
      this.body));
  }

  update(rows, now) {
    keyed(this.body, rows, (row) => row.id, (row) => this.make(row), (node, row) => this.change(node, row, now));
  }

  make(row) {
    const box = h("input", { type: "checkbox", "aria-label": `Compare ${row.name}`, on: {
      change: () => {
        if (box.checked) this.chosen.add(row.id);
        else this.chosen.delete(row.id);
        this.changed();
      },
    } });
    const cell = (name, kind = "") => h("td", { class: kind, "data-name": name });
    const bar = h("span", { class: "bar" }, h("span", { class: "bar-fill" }));
    const node = h("tr", {},
      h("td", { class: "pick" }, box),
      h("th", { scope: "row" }, h("a", { href: `#/run/${idPath(row.id)}`, text: row.name })),
      h("td", { class: "state" }), cell("method"), cell("seed"),
      h("td", { class: "progress", "data-name": "round" }, bar, h("span", { class: "progress-text" })),
      cell("clients", "number"), cell("global", "number"), cell("last event", "number muted"));
    node.box = box;
    node.fill = bar.firstChild;
    return node;
  }

  change(node, row, now) {
    const [, , state, method, seed, progress, clients, global, last] = node.children;
    node.box.checked = this.chosen.has(row.id);
    if (state.textContent !== row.state) state.replaceChildren(badge(row.state));
    set(state, "title", row.stopped || row.wrong || null);
    say(method, row.method || "–");
    say(seed, row.seed === null ? "–" : String(row.seed));
    const share = row.rounds ? Math.min(1, row.round / row.rounds) : row.state === "finished" ? 1 : 0;
    node.fill.style.width = `${(100 * share).toFixed(1)}%`;
    const left = row.left === null ? "" : ` · ${duration(row.left)} left`;
    say(progress.lastChild, row.rounds === null ? "–" : `${row.round} / ${row.rounds}${left}`);
    say(clients, withUnit(row.score.clients, row.metric));
    say(global, withUnit(row.score.global, row.metric));
    say(last, row.last === null ? "–" : ago(row.last, now));
  }
}

// What can be done with the runs that are chosen.
export class CompareBar {
  constructor(chosen, cleared) {
    this.chosen = chosen;
    this.link = h("a", { class: "button" });
    this.text = h("span", { "aria-live": "polite" });
    const clear = h("button", { type: "button", class: "quiet", text: "Clear", on: {
      click: () => {
        chosen.clear();
        this.update();
        cleared();
      },
    } });
    this.node = h("div", { class: "compare-bar", hidden: true }, this.text, clear, this.link);
    this.update();
  }

  update() {
    const number = this.chosen.size;
    this.node.hidden = number === 0;
    say(this.text, `${several(number, "run")} chosen`);
    say(this.link, "Compare");
    set(this.link, "href", `#/compare/${[...this.chosen].map(idPath).join(",")}`);
  }
}

export function showList(content, crumbs) {
  crumbs();
  document.title = "mutua watch";
  const chosen = new Set();
  const title = h("h1", { text: "Runs" });
  const folder = h("p", { class: "path" });
  const counts = h("p", { class: "counts", role: "status" });
  const search = h("input", { type: "search", placeholder: "name, method or study", "aria-label": "Find runs" });
  const state = h("select", { "aria-label": "State" },
    ...["all states", "running", "finished", "stopped"].map((text) => h("option", { value: text.replace("all states", ""), text })));
  const groups = h("div", {});
  const empty = h("p", { class: "empty big", hidden: true });
  const bar = new CompareBar(chosen, () => redraw());
  content.append(
    h("div", { class: "page-head" }, h("div", {}, title, folder), h("div", { class: "tools" }, search, state)),
    counts, groups, empty, bar.node);
  const tables = new Map();
  let told = null;

  function redraw() {
    if (told === null) return;
    const now = Date.now() / 1000;
    say(folder, told.folder);
    const number = (of) => told.runs.filter((run) => run.state === of).length;
    const states = ["running", "finished", "stopped"].filter((of) => number(of)).map((of) => `${number(of)} ${of}`);
    say(counts, [several(told.runs.length, "run"), ...states].join(" · ") + (told.left_out ? ` · ${told.left_out} left out` : ""));
    const words = search.value.trim().toLowerCase();
    const runs = told.runs.filter((run) => (!state.value || run.state === state.value)
      && (!words || `${run.id} ${run.method}`.toLowerCase().includes(words)));
    const sections = [
      { id: "", name: told.studies.length ? "Single runs" : "", runs: runs.filter((run) => run.study === null) },
      ...told.studies.map((study) => ({ ...study, runs: runs.filter((run) => run.study === study.id) })),
    ].filter((section) => section.runs.length);
    for (const section of sections) {
      // What is at work first, then what was at work last.
      section.runs.sort((a, b) => (b.state === "running") - (a.state === "running")
        || (section.id ? 0 : (b.last ?? 0) - (a.last ?? 0)) || (a.id < b.id ? -1 : 1));
    }
    sections.sort((a, b) => b.runs.some((run) => run.state === "running") - a.runs.some((run) => run.state === "running"));
    empty.hidden = sections.length > 0;
    say(empty, told.runs.length ? "No run fits." : "There is no run here yet. Begin one in a terminal, and it appears: mutua run RECIPE");
    keyed(groups, sections, (section) => section.id, (section) => {
      const table = new RunTable(section.name || "Runs", chosen, () => bar.update());
      tables.set(section.id, table);
      const head = section.id
        ? h("h2", {}, h("span", { class: "kind", text: "study" }), h("a", { href: `#/study/${idPath(section.id)}`, text: section.name }))
        : h("h2", { text: section.name || "Single runs" });
      return h("section", { class: "card" }, head, table.node);
    }, (node, section) => tables.get(section.id).update(section.runs, now));
  }

  search.addEventListener("input", redraw);
  state.addEventListener("change", redraw);
  const timer = setInterval(redraw, 5000);
  follow("/api/list", {}, { list: (data) => { told = data; redraw(); } }, () => {});
  return () => clearInterval(timer);
}
