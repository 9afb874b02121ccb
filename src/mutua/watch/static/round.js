// A round as a picture: who was briefed, who answered, what was merged with which weight, who was refused and why.

import { card, h, s, say, scroller } from "./dom.js";
import { duration, several, size } from "./words.js";

const EACH = 20; // more clients are shown as groups, and each as a square
const KINDS = {
  merged: "merged",
  answered: "answered",
  asked: "at work",
  refused: "refused",
  failed: "failed",
};
const ROW = 30;
const SQUARE = 9;

function kindOf(round, client) {
  if (client in round.refused) return client in round.answered ? "refused" : "failed";
  if (round.merged !== null && client in round.merged) return "merged";
  return client in round.answered ? "answered" : "asked";
}

function share(weight) {
  return weight === null || weight === undefined ? "" : `${(100 * weight).toFixed(weight < 0.0995 ? 1 : 0)} %`;
}

function short(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// One row of the picture: from the server's brief over the client to the merge, or to where its reply ended.
function items(round) {
  const each = round.asked.map((client) => ({ name: client, kind: kindOf(round, client), weight: round.merged?.[client] ?? null, why: round.refused[client] ?? "" }));
  if (round.asked.length <= EACH) return each;
  return Object.keys(KINDS).map((kind) => {
    const mine = each.filter((item) => item.kind === kind);
    const known = mine.filter((item) => item.weight !== null);
    const weight = known.length ? known.reduce((sum, item) => sum + item.weight, 0) : null;
    return { name: several(mine.length, "client"), kind, weight, why: "", number: mine.length };
  }).filter((item) => item.number);
}

function picture(round, width, running) {
  const rows = items(round);
  const height = Math.max(rows.length * ROW + 30, 120);
  const from = { x: 10, y: height / 2 + 8 };
  const client = width < 480 ? 60 : 92;
  const names = width < 480 ? 130 : 175;
  const to = { x: width - 14, y: height / 2 + 8 };
  const begin = client + names;
  const room = Math.max(60, height - 60);
  const parts = [
    s("text", { class: "head", x: 0, y: 12, text: "briefed" }),
    s("text", { class: "head", x: client, y: 12, text: "clients" }),
    s("text", { class: "head end", x: width, y: 12, text: "merged" }),
  ];
  const total = rows.reduce((sum, row) => sum + (row.weight ?? 0), 0) || 1;
  let stacked = to.y - room / 2;
  rows.forEach((row, i) => {
    const y = 30 + (i + 0.5) * ((height - 30) / rows.length);
    parts.push(s("path", { class: "brief", d: `M${from.x} ${from.y}C${client * 0.6} ${from.y} ${client * 0.4} ${y} ${client - 8} ${y}` }));
    parts.push(s("circle", { class: `node ${row.kind}`, cx: client, cy: y, r: 5 }));
    parts.push(s("text", { class: "name", x: client + 11, y: y + 4, text: short(row.name, width < 480 ? 11 : 16) }, s("title", { text: row.name })));
    const middle = (begin + to.x) / 2;
    if (row.kind === "merged") {
      const thick = row.weight === null ? 2 : Math.max(1.5, (row.weight / total) * Math.min(room, 90));
      const end = row.weight === null ? to.y : stacked + ((row.weight / total) * room) / 2;
      stacked += row.weight === null ? 0 : (row.weight / total) * room;
      parts.push(s("path", { class: "reply merged", "stroke-width": thick.toFixed(1), d: `M${begin} ${y}C${middle} ${y} ${middle} ${end} ${to.x - 5} ${end}` }));
      parts.push(s("text", { class: "weight end", x: begin - 6, y: y + 4, text: share(row.weight) }));
    } else if (row.kind === "refused" || row.kind === "failed") {
      const from = client + 14 + Math.min(short(row.name, 16).length, width < 480 ? 11 : 16) * 7;
      const stop = from + (row.kind === "failed" ? 14 : 60);
      parts.push(s("path", { class: "reply wrong", d: `M${from} ${y}H${stop}` }));
      parts.push(s("path", { class: "cross", d: `M${stop - 4} ${y - 4}l8 8m0 -8l-8 8` }));
      const letters = Math.floor((to.x - stop - 20) / 6.4);
      parts.push(s("text", { class: "why", x: stop + 10, y: y + 4, text: short(`${KINDS[row.kind]}${row.why ? `: ${row.why}` : ""}`, Math.max(letters, 7)) }, s("title", { text: row.why })));
    } else if (row.kind === "answered") {
      parts.push(s("path", { class: "reply answered", d: `M${begin} ${y}H${begin + (to.x - begin) * 0.5}` }));
      parts.push(s("text", { class: "why", x: begin + (to.x - begin) * 0.5 + 8, y: y + 4, text: "answered" }));
    } else {
      parts.push(s("text", { class: "why", x: begin + 6, y: y + 4, text: running && !round.over ? "at work …" : "no reply" }));
    }
  });
  parts.push(s("circle", { class: "hub", cx: from.x, cy: from.y, r: 7 }));
  if (round.merged !== null) parts.push(s("rect", { class: "hub", x: to.x - 5, y: to.y - room / 2, width: 10, height: room, rx: 5 }));
  return s("svg", { class: "round-picture", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": spoken(round) }, ...parts);
}

// Every client as a square, in the order of the list.
function squares(round, width) {
  const across = Math.max(1, Math.floor(width / (SQUARE + 2)));
  const drawn = {};
  round.asked.forEach((client, i) => {
    const kind = kindOf(round, client);
    const [x, y] = [(i % across) * (SQUARE + 2), Math.floor(i / across) * (SQUARE + 2)];
    drawn[kind] = `${drawn[kind] ?? ""}M${x} ${y}h${SQUARE}v${SQUARE}h-${SQUARE}Z`;
  });
  const height = Math.ceil(round.asked.length / across) * (SQUARE + 2);
  return s("svg", { class: "squares", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Every client of the round as a square: ${spoken(round)}` },
    ...Object.entries(drawn).map(([kind, d]) => s("path", { class: `square ${kind}`, d })));
}

function counted(round) {
  const found = {};
  for (const client of round.asked) {
    const kind = kindOf(round, client);
    found[kind] = (found[kind] ?? 0) + 1;
  }
  return found;
}

function spoken(round, running = true) {
  const found = counted(round);
  return `${several(round.number, "client")} briefed: ${Object.keys(KINDS).filter((kind) => found[kind]).map((kind) => `${found[kind]} ${kind === "asked" && !(running && !round.over) ? "without a reply" : KINDS[kind]}`).join(", ")}.`;
}

export class RoundCard {
  constructor(choose) {
    this.choose = choose;
    this.running = true;
    this.known = [];
    this.round = null;
    this.wanted = null;
    const step = (text, label, by) => h("button", { type: "button", class: "quiet step", "aria-label": label, text, on: { click: () => this.step(by) } });
    this.back = step("‹", "The round before", -1);
    this.on = step("›", "The next round", 1);
    this.newest = h("button", { type: "button", class: "quiet", text: "newest", on: { click: () => this.go(null) } });
    this.title = h("strong", {});
    this.text = h("p", { class: "muted" });
    this.place = h("div", { class: "round-place" });
    this.refused = h("ul", { class: "reasons" });
    this.rows = h("tbody", {});
    this.details = h("details", {}, h("summary", { text: "As a table" }),
      scroller("The round as a table", h("table", {}, h("thead", {}, h("tr", {},
        ...["client", "came of it", "weight", "work", "reply", "why"].map((text) => h("th", { scope: "col", text })))), this.rows)));
    this.details.addEventListener("toggle", () => this.table());
    this.node = card("A round", "a-round",
      h("div", { class: "round-head" }, this.title, h("span", { class: "steps" }, this.back, this.on, this.newest)),
      this.text, this.place, this.refused, this.details);
    this.node.classList.add("round-card");
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.place);
  }

  step(by) {
    const at = this.known.indexOf(this.round?.round ?? -1);
    const to = this.known[at + by];
    if (to !== undefined) this.go(at + by === this.known.length - 1 ? null : to);
  }

  go(round) {
    this.wanted = round;
    this.choose(round);
  }

  update(round, known, running) {
    this.known = known ?? this.known;
    this.running = running ?? this.running;
    if (round !== undefined) this.round = round;
    this.draw();
    this.table();
  }

  draw() {
    const round = this.round;
    this.node.classList.toggle("nothing", round === null);
    const at = round === null ? -1 : this.known.indexOf(round.round);
    this.back.disabled = at <= 0;
    this.on.disabled = at < 0 || at >= this.known.length - 1;
    this.newest.hidden = this.wanted === null;
    if (round === null) {
      say(this.title, "No round has begun yet");
      say(this.text, "");
      this.place.replaceChildren();
      return;
    }
    say(this.title, `Round ${round.round.toLocaleString("en")}${round.over ? "" : this.running ? ", at work" : ", not over"}`);
    const times = Object.values(round.answered).map(([seconds]) => seconds);
    const longest = times.length ? ` The longest work took ${duration(Math.max(...times))}.` : "";
    say(this.text, spoken(round, this.running) + longest + (round.whole ? "" : " There is too much of this round to show all of it."));
    const width = Math.max(280, this.place.clientWidth);
    const key = JSON.stringify([round, width, this.running]);
    if (key === this.drawn) return;
    this.drawn = key;
    const many = round.asked.length > EACH;
    this.place.replaceChildren(picture(round, width, this.running), ...(many ? [squares(round, width)] : []));
    const wrong = many ? Object.entries(round.refused) : [];
    this.refused.replaceChildren(...wrong.slice(0, 12).map(([client, why]) => h("li", {}, h("strong", { text: client }), ` ${kindOf(round, client)}: ${why}`)),
      ...(wrong.length > 12 ? [h("li", { text: `and ${wrong.length - 12} more` })] : []));
  }

  table() {
    if (!this.details.open || this.round === null) return;
    const round = this.round;
    this.rows.replaceChildren(...round.asked.slice(0, 500).map((client) => {
      const [seconds, bytes] = round.answered[client] ?? [null, null];
      return h("tr", {}, h("th", { scope: "row", text: client }), h("td", { text: KINDS[kindOf(round, client)] }),
        h("td", { class: "number", text: share(round.merged?.[client]) }),
        h("td", { class: "number", text: seconds === null ? "" : duration(seconds) }),
        h("td", { class: "number", text: bytes === null ? "" : size(bytes) }),
        h("td", { text: round.refused[client] ?? "" }));
    }));
  }
}
