// The grid of clients: model, samples, alone / global / what it serves with, last seen, faults, what has left it.

import { card, h, keyed, s, say, set } from "./dom.js";
import { ago, several, shown, size } from "./words.js";

const A_PAGE = matchMedia("(max-width: 40rem)").matches ? 16 : 48;
const NUMBERS = [["alone", "alone"], ["global", "global"], ["personal", "serves with"]];
const NOW = { merged: "merged", answered: "answered", asked: "at work", refused: "refused", failed: "failed" };
const ORDERS = {
  name: ["by name", (a, b) => a.at - b.at],
  worst: ["worst first", (a, b, lower) => (lower ? -1 : 1) * ((a.personal ?? Infinity) - (b.personal ?? Infinity)) || a.at - b.at],
  faults: ["most faults first", (a, b) => b.faults - a.faults || a.at - b.at],
  seen: ["longest unseen first", (a, b) => (a.round ?? -1) - (b.round ?? -1) || a.at - b.at],
};

function spark(values, low, high) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return "";
  let text = "";
  let pen = false;
  values.forEach((value, i) => {
    if (value === null) {
      pen = false;
      return;
    }
    text += `${pen ? "L" : "M"}${((i / (values.length - 1)) * 100).toFixed(1)} ${(26 - ((value - low) / (high - low || 1)) * 24).toFixed(1)}`;
    pen = true;
  });
  return text;
}

export class ClientsCard {
  constructor(choose, chosen) {
    this.choose = choose;
    this.chosen = chosen;
    this.rows = [];
    this.kinds = [];
    this.faults = new Map();
    this.lines = { rounds: [], of: {} };
    this.metric = { percent: true };
    this.page = 0;
    this.search = h("input", { type: "search", placeholder: "id or model", "aria-label": "Find clients" });
    this.order = h("select", { "aria-label": "Order of clients" }, ...Object.entries(ORDERS).map(([value, [text]]) => h("option", { value, text })));
    this.only = h("input", { type: "checkbox", id: "only-faults" });
    this.text = h("p", { class: "muted" });
    this.list = h("ul", { class: "tiles" });
    this.back = h("button", { type: "button", class: "quiet", text: "‹ before", on: { click: () => this.turn(-1) } });
    this.on = h("button", { type: "button", class: "quiet", text: "next ›", on: { click: () => this.turn(1) } });
    this.where = h("span", { class: "muted" });
    this.pager = h("div", { class: "pager" }, this.back, this.where, this.on);
    this.node = card("Clients", "clients",
      h("div", { class: "tools" }, this.search, this.order, h("label", { class: "check", for: "only-faults" }, this.only, "only with faults")),
      this.text, this.list, this.pager);
    this.node.classList.add("wide");
    for (const control of [this.search, this.order, this.only]) {
      control.addEventListener("input", () => {
        this.page = 0;
        this.draw();
      });
    }
  }

  turn(by) {
    this.page += by;
    this.draw();
    this.node.scrollIntoView({ block: "start" });
  }

  update(told, metric, models) {
    if (told !== null) {
      this.rows = told.rows.map((row, at) => {
        const client = { at };
        told.columns.forEach((name, i) => { client[name] = row[i]; });
        return client;
      });
      this.kinds = told.kinds;
    }
    this.metric = metric;
    this.models = models;
    this.draw();
  }

  setFaults(faults) {
    this.faults = new Map();
    for (const fault of faults) {
      if (!this.faults.has(fault.client)) this.faults.set(fault.client, []);
      this.faults.get(fault.client).push(fault);
    }
    this.draw();
  }

  setLines(lines) {
    this.lines = lines;
    this.draw();
  }

  // Several parts come at once: they are drawn once.
  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.drawNow();
    });
  }

  drawNow() {
    const words = this.search.value.trim().toLowerCase();
    const order = ORDERS[this.order.value][1];
    const found = this.rows.filter((row) => (!words || `${row.id} ${row.model ?? ""}`.toLowerCase().includes(words))
      && (!this.only.checked || row.faults || row.now === "failed" || row.now === "refused"));
    found.sort((a, b) => order(a, b, this.metric.lower));
    const pages = Math.max(1, Math.ceil(found.length / A_PAGE));
    this.page = Math.max(0, Math.min(this.page, pages - 1));
    const wrong = this.rows.filter((row) => row.faults).length;
    say(this.text, `${several(this.rows.length, "client")}${found.length < this.rows.length ? `, ${found.length} shown` : ""}${wrong ? `, ${wrong} with faults` : ""}. `
      + "Bars: on each client's own test data. A client that is pressed has its line in the picture above.");
    this.pager.hidden = pages < 2;
    say(this.where, `page ${this.page + 1} of ${pages}`);
    this.back.disabled = this.page === 0;
    this.on.disabled = this.page >= pages - 1;
    let most = 0;
    for (const row of this.rows) for (const [key] of NUMBERS) if (row[key] !== null && Math.abs(row[key]) > most) most = Math.abs(row[key]);
    this.scale = this.metric.percent ? 1 : most || 1;
    const values = Object.values(this.lines.of).flat().filter((value) => value !== null);
    [this.low, this.high] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const now = this.now ? this.now() : Date.now() / 1000;
    keyed(this.list, found.slice(this.page * A_PAGE, (this.page + 1) * A_PAGE), (row) => row.id, (row) => this.make(row), (node, row) => this.change(node, row, now));
  }

  make(row) {
    const parts = {};
    parts.name = h("button", { type: "button", class: "tile-name", "aria-pressed": "false", text: row.id, title: row.id, on: { click: () => this.choose(row.id) } });
    parts.now = h("span", { class: "badge" });
    parts.about = h("p", { class: "muted about" });
    parts.bars = NUMBERS.map(([key, text]) => {
      const bar = h("span", { class: `bar-fill ${key}` });
      const number = h("span", { class: "number" });
      return { key, bar, number, node: h("div", { class: "level" }, h("span", { class: "level-name", text }), h("span", { class: "bar" }, bar), number) };
    });
    parts.path = s("path", { class: "spark", d: "" });
    parts.spark = s("svg", { class: "spark-box", viewBox: "0 0 100 28", preserveAspectRatio: "none", "aria-hidden": "true" }, parts.path);
    parts.faults = h("ul", { class: "reasons" });
    parts.sent = h("p", { class: "muted sent" });
    parts.seen = h("p", { class: "muted seen" });
    const node = h("li", { class: "tile" }, h("div", { class: "tile-head" }, parts.name, parts.now), parts.about,
      ...parts.bars.map((bar) => bar.node), parts.spark, parts.faults, parts.seen, parts.sent);
    node.parts = parts;
    return node;
  }

  change(node, row, now) {
    const { parts } = node;
    set(parts.name, "aria-pressed", this.chosen.has(row.id));
    const wrong = row.now === "failed" || row.now === "refused";
    node.classList.toggle("wrong", wrong);
    set(parts.now, "class", `badge ${wrong ? "stopped" : row.now === "asked" ? "running" : "plain"}`);
    const idle = row.now === "asked" && this.running === false;
    say(parts.now, idle ? "no reply" : NOW[row.now] ?? "");
    parts.now.hidden = !row.now;
    const about = [row.model, row.samples === null ? null : several(row.samples, "sample")].filter(Boolean).join(" · ");
    say(parts.about, about || "model and samples are its own");
    for (const { key, bar, number, node: level } of parts.bars) {
      level.hidden = row[key] === null;
      if (row[key] === null) continue;
      bar.style.width = `${Math.max(0, Math.min(100, (100 * row[key]) / this.scale)).toFixed(1)}%`;
      say(number, shown(row[key], this.metric));
    }
    const d = spark(this.lines.of[row.id] ?? [], this.low, this.high);
    set(parts.path, "d", d);
    parts.spark.classList.toggle("gone", !d);
    say(parts.seen, row.round === null ? `asked in ${several(row.asked, "round")}` : `seen in round ${row.round.toLocaleString("en")}, ${ago(row.time, now)} · answered ${row.answered} of ${row.asked}`);
    const sent = row.sent.map((bytes, i) => [this.kinds[i], bytes]).filter(([, bytes]) => bytes > 0);
    say(parts.sent, sent.length ? `left it: ${sent.map(([kind, bytes]) => `${kind} ${size(bytes)}`).join(", ")}` : "nothing has left it");
    const faults = (this.faults.get(row.id) ?? []).map((fault) => `${fault.what} in ${/^\d+$/.test(fault.rounds) ? "round" : "rounds"} ${fault.rounds}: ${fault.why}`);
    if (row.retried) faults.push(`${several(row.retried, "time")} repeated after this machine failed`);
    const key = faults.join("\n");
    if (node.faultsKey !== key) {
      node.faultsKey = key;
      parts.faults.replaceChildren(...faults.slice(0, 4).map((text) => h("li", { text })), ...(faults.length > 4 ? [h("li", { text: `and ${faults.length - 4} more` })] : []));
    }
  }
}
