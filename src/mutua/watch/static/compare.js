// Runs side by side, with bands over seeds; and a study with its verdicts.

import { Chart } from "./chart.js";
import { card, h, say, scroller } from "./dom.js";
import { badge, CompareBar, idPath, RunTable } from "./list.js";
import { follow } from "./stream.js";
import { several, shown, withUnit } from "./words.js";

const CLASSES = {
  "#999999": "c-alone", "#E69F00": "c-global", "#0072B2": "c-own", "#009E73": "c-green", "#56B4E9": "c-sky", "#D55E00": "c-vermillion",
  "#CC79A7": "c-purple", "#F0E442": "c-yellow", "#000000": "c-ink", "#882255": "c-wine", "#332288": "c-indigo", "#999933": "c-olive", "#117733": "c-forest",
};
const VERDICTS = { better: "▲ better", worse: "▼ worse", holds: "▲ holds", "does not hold": "▼ does not hold" };

class Comparison {
  constructor() {
    this.told = null;
    this.measure = h("select", { "aria-label": "What is compared", on: { change: () => this.draw() } },
      h("option", { value: "clients", text: "what clients serve with, mean over clients" }),
      h("option", { value: "global", text: "the global on the common test set" }));
    this.chart = new Chart("Comparison", (value) => withUnit(value, this.told?.metric ?? { percent: true }), 340);
    this.notes = h("div", {});
    this.rows = h("tbody", {});
    this.text = h("p", { class: "muted" });
    this.node = card("Side by side", "side-by-side", h("div", { class: "tools" }, this.measure), this.chart.node, this.text, this.notes,
      scroller("Newest numbers", h("table", {}, h("thead", {}, h("tr", {},
        ...["method", "newest", "seeds", "runs"].map((text, i) => h("th", { scope: "col", text })))), this.rows)));
    this.node.classList.add("wide");
  }

  update(told) {
    this.told = told;
    this.draw();
  }

  draw() {
    const told = this.told;
    if (told === null) return;
    const measure = this.measure.value;
    const lines = [];
    const bands = [];
    told.groups.forEach((group, i) => {
      const of = group[measure];
      const colour = CLASSES[group.colour] ?? "c-alone";
      lines.push({ key: group.label, name: group.label, colour, dash: i % 2 === 1, rounds: of.rounds, values: of.mean });
      if (of.sd.some((sd) => sd !== null)) {
        const end = (sign) => of.mean.map((mean, k) => (of.sd[k] === null ? mean : mean + sign * of.sd[k]));
        bands.push({ key: group.label, colour, rounds: of.rounds, low: end(-1), high: end(1) });
      }
    });
    const rounds = Math.max(0, ...told.groups.flatMap((group) => group.runs.map((run) => run.rounds ?? 0)));
    this.chart.label = `Comparison by ${told.metric.name}`;
    this.chart.update(lines, bands, rounds || null);
    say(this.text, bands.length ? "A band is one standard deviation over seeds to each side." : "One run each: no band over seeds.");
    this.notes.replaceChildren(...told.notes.map((text) => h("p", { class: "note", text })));
    this.rows.replaceChildren(...told.groups.map((group) => {
      const of = group[measure];
      const last = of.mean.length - 1;
      const number = last < 0 ? "–" : `${shown(of.mean[last], told.metric)}${of.sd[last] === null ? "" : ` ± ${shown(of.sd[last], told.metric)}`}${told.metric.percent ? " %" : ""}`;
      return h("tr", {}, h("th", { scope: "row" }, h("span", { class: `swatch ${CLASSES[group.colour] ?? "c-alone"}` }), group.label),
        h("td", { text: last < 0 ? number : `${number} in round ${of.rounds[last]}` }),
        h("td", { text: String(of.seeds) }),
        h("td", {}, h("div", { class: "links" }, ...group.runs.map((run) => h("a", { href: `#/run/${idPath(run.id)}`, class: `chip ${run.state}`, title: `${run.name}, ${run.state}`, text: run.seed === null ? run.name : `seed ${run.seed}` })))));
    }));
  }
}

const WORDS = ["better", "worse", "equal", "cannot tell", "holds", "does not hold"];

// A verdict is what one looks for: it stands beside what it is of, not behind all numbers.
function verdictFirst(table) {
  if (!table.rows.length || !table.rows.every((row) => WORDS.includes(row.at(-1)))) return table;
  const move = (row) => [...row.slice(0, table.left), row.at(-1), ...row.slice(table.left, -1)];
  return { ...table, heads: move(table.heads).map((text, i) => (i === table.left ? "verdict" : text)), rows: table.rows.map(move), left: table.left + 1 };
}

function sheet(told, at) {
  const table = verdictFirst(told);
  const id = `table-${at}`;
  const rows = table.rows.map((row) => h("tr", {}, ...row.map((text, i) => {
    const verdict = table !== told && i === table.left - 1 && VERDICTS[text];
    const kind = i >= table.left ? "number" : i === table.left - 1 && table !== told ? `verdict ${text.replaceAll(" ", "-")}` : "";
    if (i === 0 && text.startsWith("  ")) return h("th", { scope: "row", class: "inner", text: text.trim() });
    return h(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: kind, text: verdict || text });
  })));
  const heads = table.heads.map((text, i) => h(text ? "th" : "td", { scope: text ? "col" : null, class: i < table.left ? "" : "number", text }));
  const node = card(table.title.charAt(0).toUpperCase() + table.title.slice(1), id, scroller(`${table.title}: table`, h("table", { class: "sheet" }, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...rows))),
    ...table.remarks.map((text) => h("p", { class: "muted", text })));
  node.classList.add("wide");
  return node;
}

export function showCompare(content, ids, crumbs) {
  crumbs(["runs", "#/"], ["compare"]);
  document.title = "compare · mutua watch";
  const comparison = new Comparison();
  content.append(h("div", { class: "page-head" }, h("div", {}, h("h1", { text: `Comparing ${several(ids.length, "run")}` }))), comparison.node);
  const asked = new URLSearchParams(ids.map((id) => ["id", id]));
  follow("/api/compare", asked, { compare: (told) => comparison.update(told) },
    () => content.replaceChildren(h("p", { class: "empty big", text: "None of these runs is below the watched folder." }), h("p", {}, h("a", { href: "#/", text: "To all runs" }))));
}

export function showStudy(content, [id], crumbs) {
  crumbs(["runs", "#/"], [id]);
  document.title = `${id} · mutua watch`;
  const comparison = new Comparison();
  const tables = h("div", { class: "cards" });
  const counts = h("p", { class: "muted" });
  const chosen = new Set();
  const bar = new CompareBar(chosen, () => redraw());
  const table = new RunTable("Runs of the study", chosen, () => bar.update());
  let rows = [];
  const redraw = () => table.update(rows, Date.now() / 1000);
  content.append(h("div", { class: "page-head" }, h("div", {}, h("h1", { text: id.split("/").at(-1) }), counts)), tables,
    h("div", { class: "cards" }, comparison.node, h("section", { class: "card wide", "aria-labelledby": "its-runs" }, h("h2", { id: "its-runs", text: "Its runs" }), table.node)), bar.node);
  follow("/api/study", { id }, {
    compare: (told) => comparison.update(told),
    tables: (told) => tables.replaceChildren(...told.map(sheet)),
    runs: (told) => {
      rows = told;
      const states = ["running", "finished", "stopped"].map((state) => [state, told.filter((run) => run.state === state).length]).filter(([, number]) => number);
      say(counts, `Study of ${several(told.length, "run")}: ${states.map(([state, number]) => `${number} ${state}`).join(", ")}.`);
      redraw();
    },
  }, () => content.replaceChildren(h("p", { class: "empty big", text: `There is no study ${id} below the watched folder.` }), h("p", {}, h("a", { href: "#/", text: "To all runs" }))));
}
