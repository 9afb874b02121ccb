// Curves over rounds, drawn as SVG: lines, bands, a cursor for mouse and keyboard, a legend that hides lines.

import { h, s, set } from "./dom.js";

const MARGIN = { top: 14, right: 16, bottom: 34, left: 58 };

function nice(low, high, count) {
  const rough = (high - low || Math.abs(high) || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999) ?? 10 * power;
  const first = Math.floor(low / step + 1e-9) * step;
  const ticks = [];
  for (let tick = first; tick < high + step * 0.999 && ticks.length < 12; tick += step) {
    ticks.push(Number(tick.toPrecision(12)));
  }
  return ticks;
}

function path(points) {
  let text = "";
  let pen = false;
  for (const [x, y] of points) {
    if (y === null) {
      pen = false;
    } else {
      text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
  }
  return text;
}

export class Chart {
  // `words` gives a number as text; lines have key, name, colour (a class), rounds, values and perhaps dash and faint.
  constructor(label, words, height = 300) {
    this.label = label;
    this.words = words;
    this.height = height;
    this.hidden = new Set();
    this.lines = [];
    this.bands = [];
    this.last = null;
    this.cursor = null;
    this.svg = s("svg", { class: "chart", role: "img", "aria-label": label, height });
    this.tip = h("div", { class: "tip", hidden: true });
    this.frame = h("div", {
      class: "chart-frame",
      tabindex: "0",
      role: "slider",
      "aria-label": `${label}: round under the cursor`,
      "aria-valuemin": "0",
      "aria-valuemax": "0",
      "aria-valuenow": "0",
      "aria-valuetext": "no round",
      on: {
        pointermove: (event) => this.point(event),
        pointerleave: () => this.show(null),
        keydown: (event) => this.key(event),
        blur: () => this.show(null),
      },
    }, this.svg, this.tip);
    this.legend = h("div", { class: "legend", role: "group", "aria-label": `Lines of: ${label}` });
    this.empty = h("p", { class: "empty", text: "Nothing has been measured yet." });
    this.node = h("div", { class: "chart-box" }, this.frame, this.empty, this.legend);
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.frame);
  }

  show(round) {
    this.cursor = round;
    this.mark();
  }

  update(lines, bands, rounds) {
    this.lines = lines;
    this.bands = bands ?? [];
    this.last = rounds;
    this.entries();
    this.draw();
  }

  entries() {
    const shown = this.lines.filter((line) => !line.unnamed);
    const key = JSON.stringify(shown.map((line) => [line.key, line.name, line.colour]));
    if (key === this.known) return;
    this.known = key;
    this.legend.replaceChildren(...shown.map((line) => {
      const button = h("button", {
        type: "button",
        class: `entry ${line.colour}`,
        "aria-pressed": String(!this.hidden.has(line.key)),
        title: line.name,
        on: {
          click: () => {
            if (!this.hidden.delete(line.key)) this.hidden.add(line.key);
            button.setAttribute("aria-pressed", String(!this.hidden.has(line.key)));
            this.draw();
          },
        },
      }, h("span", { class: `swatch${line.dash ? " dashed" : ""}` }), h("span", { class: "name", text: line.name }));
      return button;
    }));
  }

  draw() {
    const width = Math.max(240, this.frame.clientWidth);
    const lines = this.lines.filter((line) => !this.hidden.has(line.key) && line.rounds.length);
    const bands = this.bands.filter((band) => !this.hidden.has(band.key) && band.rounds.length);
    const values = [...lines.flatMap((line) => line.values), ...bands.flatMap((band) => [...band.low, ...band.high])]
      .filter((value) => value !== null);
    this.empty.hidden = values.length > 0;
    this.frame.hidden = values.length === 0;
    this.rounds = [...new Set(lines.flatMap((line) => line.rounds))].sort((a, b) => a - b);
    if (!values.length) return;
    let low = Infinity;
    let high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low >= 0 && low < 0.35 * high) low = 0;
    const ticks = nice(low, high, this.height > 220 ? 5 : 4);
    [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
    const first = Math.min(...this.rounds, ...(bands.length ? [bands[0].rounds[0]] : []));
    const end = Math.max(this.last ?? 0, this.rounds.at(-1) ?? 0, first + 1);
    const inner = { width: width - MARGIN.left - MARGIN.right, height: this.height - MARGIN.top - MARGIN.bottom };
    const x = (round) => MARGIN.left + ((round - first) / (end - first)) * inner.width;
    const y = (value) => (value === null ? null : MARGIN.top + (1 - (value - low) / (high - low || 1)) * inner.height);
    this.x = x;
    this.y = y;
    const parts = [];
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    for (const tick of ticks) {
      parts.push(s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }));
      parts.push(s("text", { class: "tick end", x: MARGIN.left - 8, y: y(tick) + 4, text: this.tick(tick, step) }));
    }
    const along = nice(first, end, Math.max(2, Math.min(8, inner.width / 80)))
      .filter((tick) => Number.isInteger(tick) && tick >= first && tick <= end);
    for (const tick of along) {
      parts.push(s("text", { class: "tick middle", x: x(tick), y: this.height - 14, text: tick.toLocaleString("en") }));
    }
    parts.push(s("text", { class: "tick end axis", x: width - MARGIN.right, y: this.height - 1, text: "round" }));
    parts.push(s("line", { class: "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(low), y2: y(low) }));
    for (const band of bands) {
      const there = band.rounds.map((round, i) => [x(round), y(band.high[i])]);
      const back = band.rounds.map((round, i) => [x(round), y(band.low[i])]).reverse();
      const points = [...there, ...back].filter((point) => point[1] !== null);
      if (points.length > 2) {
        parts.push(s("path", { class: `band ${band.colour} ${band.kind ?? ""}`, d: `${path(points)}Z` }));
      }
    }
    for (const line of lines) {
      const points = line.rounds.map((round, i) => [x(round), y(line.values[i])]);
      const kind = `curve ${line.colour}${line.dash ? " dashed" : ""}${line.faint ? " faint" : ""}${line.strong ? " strong" : ""}`;
      parts.push(s("path", { class: kind, d: path(points), "data-line": line.key }));
      if (points.length <= 25 && !line.faint) {
        for (const [px, py] of points) {
          if (py !== null) parts.push(s("circle", { class: `dot ${line.colour}`, cx: px, cy: py, r: 2.6 }));
        }
      }
    }
    this.guide = s("line", { class: "guide", y1: MARGIN.top, y2: this.height - MARGIN.bottom, visibility: "hidden" });
    parts.push(this.guide);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.svg.setAttribute("width", width);
    this.svg.replaceChildren(...parts);
    set(this.svg, "aria-label", `${this.label}. ${this.summary(lines)}`);
    set(this.frame, "aria-valuemin", this.rounds[0] ?? 0);
    set(this.frame, "aria-valuemax", this.rounds.at(-1) ?? 0);
    if (this.cursor === null) set(this.frame, "aria-valuenow", this.rounds.at(-1) ?? 0);
    this.shownLines = lines;
    this.mark();
  }

  // A number at the axis: no digit that every tick has as a zero.
  tick(value, step) {
    return step >= 0.00999 ? this.words(value).replace(/\.0+(?= %)/, "") : this.words(value);
  }

  summary(lines) {
    return lines.filter((line) => !line.faint).slice(0, 6).map((line) => {
      const last = line.values.length - 1;
      return `${line.name}: ${this.words(line.values[last])} in round ${line.rounds[last]}`;
    }).join("; ");
  }

  point(event) {
    if (!this.rounds?.length) return;
    const box = this.svg.getBoundingClientRect();
    const at = event.clientX - box.left;
    this.show(this.rounds.reduce((best, round) => (Math.abs(this.x(round) - at) < Math.abs(this.x(best) - at) ? round : best)));
  }

  key(event) {
    if (!this.rounds?.length) return;
    const last = this.rounds.length - 1;
    const at = this.cursor === null ? last : this.rounds.indexOf(this.cursor);
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last, PageDown: at - 10, PageUp: at + 10 }[event.key];
    if (event.key === "Escape") this.show(null);
    if (to === undefined) return;
    event.preventDefault();
    this.show(this.rounds[Math.max(0, Math.min(last, to))]);
  }

  mark() {
    const round = this.cursor;
    const on = round !== null && this.guide !== undefined && this.rounds.includes(round);
    this.tip.hidden = !on;
    if (this.guide) this.guide.setAttribute("visibility", on ? "visible" : "hidden");
    if (!on) return;
    const x = this.x(round);
    this.guide.setAttribute("x1", x);
    this.guide.setAttribute("x2", x);
    const found = [];
    for (const line of this.shownLines) {
      const at = line.rounds.indexOf(round);
      if (at >= 0 && line.values[at] !== null) found.push([line, line.values[at]]);
    }
    found.sort((a, b) => b[1] - a[1]);
    const rows = found.slice(0, 12);
    this.tip.replaceChildren(
      h("strong", { text: `round ${round.toLocaleString("en")}` }),
      ...rows.map(([line, value]) => h("div", { class: `tip-row ${line.colour}` },
        h("span", { class: `swatch${line.dash ? " dashed" : ""}` }),
        h("span", { class: "name", text: line.name }),
        h("span", { class: "number", text: this.words(value) }))),
      found.length > rows.length && h("div", { class: "muted", text: `and ${found.length - rows.length} more` }),
    );
    const width = this.frame.clientWidth;
    const room = Math.min(this.tip.offsetWidth, width);
    this.tip.style.left = `${Math.max(0, x + 14 + room > width ? x - room - 14 : x + 14)}px`;
    set(this.frame, "aria-valuenow", round);
    set(this.frame, "aria-valuetext", `round ${round}: ${rows.map(([line, value]) => `${line.name} ${this.words(value)}`).join(", ")}`);
  }
}

