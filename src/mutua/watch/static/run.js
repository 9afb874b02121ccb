// One run, live.

import { Chart } from "./chart.js";
import { ClientsCard } from "./clients.js";
import { card, h, say, set } from "./dom.js";
import { badge, idPath } from "./list.js";
import { RoundCard } from "./round.js";
import { follow } from "./stream.js";
import { ago, capital, duration, several, size, withUnit } from "./words.js";

const COLOURS = { global: "c-global", predictor: "c-own", "own-global": "c-sky", "own-personal": "c-alone" };
const OTHERS = ["c-green", "c-purple", "c-vermillion", "c-wine", "c-olive", "c-indigo"];

export function commandBox(label, command) {
  const copied = h("span", { class: "muted", role: "status" });
  const code = h("code", { text: command, tabindex: "0" });
  const copy = h("button", { type: "button", class: "quiet", text: "Copy", on: {
    click: async () => {
      try {
        await navigator.clipboard.writeText(command);
        copied.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        copied.textContent = "selected: copy it with Ctrl-C";
      }
    },
  } });
  return h("div", { class: "command" }, h("span", { class: "muted", text: label }), code, copy, copied);
}

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.error ?? `the server says ${answer.status}`);
}

function stopDialog(run, told) {
  const wrong = h("p", { class: "wrong-text", role: "alert" });
  const cancel = h("button", { type: "button", text: "Let it run" });
  const yes = h("button", { type: "button", class: "danger", text: "Stop the run" });
  const study = told.study === null ? [] : [h("p", { text: `It belongs to the study ${told.study}: stopping it stops the whole study.` })];
  const dialog = h("dialog", { "aria-labelledby": "stop-title" }, h("h2", { id: "stop-title", text: `Stop ${told.name}?` }),
    h("p", { text: "The clients at work finish their step, and the run is saved. It can go on later from where it stands, to the same bytes." }),
    ...study, wrong, h("div", { class: "buttons" }, cancel, yes));
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      await post("/api/stop", { id: run });
      dialog.close();
    } catch (error) {
      wrong.textContent = error.message;
      yes.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}

export function showRun(content, [id], crumbs) {
  crumbs(["runs", "#/"], [id]);
  document.title = `${id} · mutua watch`;
  const chosen = new Set();
  let head = null;
  let metric = null;
  let round = null;
  let curves = null;
  let lines = { rounds: [], of: {} };
  let offset = 0;
  const now = () => Date.now() / 1000 + offset;

  const title = h("h1", { text: id.split("/").at(-1) });
  const state = h("span", { class: "badge" });
  const about = h("p", { class: "muted" });
  const bar = h("span", { class: "bar-fill" });
  const progress = h("div", { class: "bar big", role: "progressbar", "aria-label": "Rounds", "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": "0" }, bar);
  const facts = h("dl", { class: "facts" });
  const reading = h("p", { class: "note", hidden: true, role: "status" });
  const limits = h("div", {});
  const stop = h("button", { type: "button", class: "danger", text: "Stop the run", hidden: true, on: { click: () => stopDialog(id, head) } });
  const goOn = h("div", {});
  const choice = h("select", { "aria-label": "Metric", on: { change: () => { metric = choice.value; listen(); } } });
  const all = h("input", { type: "checkbox", id: "each-client" });
  const each = h("label", { class: "check", for: "each-client" }, all, "a line for each client");
  all.addEventListener("change", () => drawCurves());
  const main = new Chart("Curves", (value) => withUnit(value, curves?.metric ?? { percent: true }), 320);
  const terms = new Chart("Terms of the objective", (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString()), 240);
  const sent = h("div", {});
  const sentText = h("p", { class: "muted" });
  const rounds = new RoundCard((wanted) => { round = wanted; listen(); });
  const clients = new ClientsCard((client) => {
    if (!chosen.delete(client)) chosen.add(client);
    if (head.clients > 40) listen();
    drawCurves();
    clients.draw();
  }, chosen);
  clients.now = now;
  const notes = h("ul", { class: "notes" });
  const notesCard = card("What happened last", "notes", notes);
  const curvesCard = card("Curves", "curves", h("div", { class: "tools" }, choice, each), main.node);
  const termsCard = card("The objective's terms", "terms", h("p", { class: "muted", text: "Mean over the clients that trained in a round." }), terms.node);
  const sentCard = card("What has left the clients", "left", sentText, sent);
  content.append(
    h("div", { class: "page-head" }, h("div", { class: "grow" }, h("div", { class: "title-line" }, title, state), about), h("div", { class: "tools" }, stop)),
    progress, facts, reading, limits, goOn,
    h("div", { class: "columns" }, h("div", {}, curvesCard, rounds.node), h("div", {}, termsCard, sentCard, notesCard)),
    clients.node);

  function drawHead() {
    set(state, "class", `badge ${head.state}`);
    say(state, head.state);
    const parts = [head.method, head.seed === null ? null : `seed ${head.seed}`, several(head.clients, "client"), head.folder];
    say(about, parts.filter(Boolean).join(" · "));
    const share = head.rounds ? head.round / head.rounds : head.state === "finished" ? 1 : 0;
    bar.style.width = `${(100 * Math.min(1, share)).toFixed(2)}%`;
    set(progress, "aria-valuemax", head.rounds ?? 1);
    set(progress, "aria-valuenow", head.round);
    reading.hidden = head.reading === null;
    if (head.reading !== null) say(reading, `Reading what was recorded before: ${(100 * head.reading).toFixed(0)} %. The newest is here already.`);
    limits.replaceChildren(...head.limits.map((text) => h("p", { class: "note", text })));
    stop.hidden = !head.stoppable;
    const key = JSON.stringify([head.state, head.resume, head.stopped, head.deployed]);
    if (key !== goOn.dataset.key) {
      goOn.dataset.key = key;
      goOn.replaceChildren();
      if (head.state === "stopped") {
        if (head.stopped) goOn.append(h("p", { class: "note wrong-text", text: capital(head.stopped) }));
        if (head.deployed) goOn.append(h("p", { class: "note", text: "The organiser goes on with a deployment: mutua deploy run FOLDER" }));
        else if (head.resume) goOn.append(commandBox("To go on, in the folder where it was started:", head.resume));
      }
    }
    const names = head.metrics.map((one) => one.key).join();
    if (choice.dataset.names !== names) {
      choice.dataset.names = names;
      choice.replaceChildren(...head.metrics.map((one) => h("option", { value: one.key, text: one.name, selected: one.key === (metric ?? head.metric.key) })));
      choice.hidden = head.metrics.length < 2;
    }
    const found = head.notes;
    notesCard.hidden = found.length === 0;
    notes.replaceChildren(...found.map((note) => h("li", {}, note.round === null ? null : h("span", { class: "muted", text: `round ${note.round} ` }), note.kind === "note" ? note.text : `${note.client} ${note.kind === "retried" ? "again" : "left out"}: ${note.text}`)));
    each.hidden = head.clients > 40;
    drawFacts();
  }

  function drawFacts() {
    if (head === null) return;
    const left = head.left === null ? null : Math.max(0, head.left - (now() - head.last));
    const pairs = [
      ["round", head.rounds === null ? String(head.round) : `${head.round.toLocaleString("en")} of ${head.rounds.toLocaleString("en")}`],
      ["time left", head.state === "running" ? (left === null ? "not known yet" : duration(left)) : "–"],
      ["clients", newest("predictor")],
      ["global", newest("global")],
      ["last event", head.last === null ? "–" : ago(head.last, now())],
      ["took", head.seconds !== null ? duration(head.seconds) : head.began === null || head.state !== "running" ? "–" : `${duration(Math.max(0, now() - head.began))} so far`],
    ];
    if (facts.children.length !== pairs.length) {
      facts.replaceChildren(...pairs.map(([name]) => h("div", {}, h("dt", { text: name }), h("dd", {}))));
    }
    pairs.forEach(([, text], i) => say(facts.children[i].lastChild, text));
  }

  function newest(key) {
    const of = curves?.lines.find((line) => line.key === key);
    return of === undefined || !of.values.length ? "–" : withUnit(of.values.at(-1), curves.metric);
  }

  function drawCurves() {
    if (curves === null) return;
    const free = [...OTHERS];
    const drawn = curves.lines.map((line) => ({ ...line, colour: COLOURS[line.key] ?? free.shift() ?? "c-alone", dash: line.key === "own-global" || line.key === "own-personal", strong: line.key === "predictor" }));
    const named = Object.keys(lines.of).filter((client) => chosen.has(client));
    const faint = all.checked ? Object.keys(lines.of).filter((client) => !chosen.has(client)) : [];
    const palette = ["c-vermillion", "c-green", "c-purple", "c-wine", "c-olive", "c-indigo"];
    const extra = [
      ...faint.map((client) => ({ key: `client ${client}`, name: client, colour: "c-own", faint: true, unnamed: true, rounds: lines.rounds, values: lines.of[client] })),
      ...named.map((client, i) => ({ key: `client ${client}`, name: client, colour: palette[i % palette.length], rounds: lines.rounds, values: lines.of[client] })),
    ];
    const band = curves.band;
    const bands = band === null || all.checked ? [] : [
      { key: "predictor", colour: "c-own", kind: "outer", rounds: band.rounds, low: band.low, high: band.high },
      { key: "predictor", colour: "c-own", rounds: band.rounds, low: band.tenth, high: band.ninetieth },
    ];
    main.label = `Curves of ${curves.metric.name}`;
    main.update([...extra.filter((line) => line.faint), ...drawn, ...extra.filter((line) => !line.faint)], bands, curves.rounds);
  }

  function drawSent(told) {
    const total = told.sent.reduce((sum, bytes) => sum + bytes, 0);
    say(sentText, told.sent.length ? `${size(total + told.envelope)} in all, ${size(told.envelope)} of it names and shapes; ${size(told.received)} came to them.` : "Nothing has left them.");
    const most = Math.max(1, ...told.sent);
    sent.replaceChildren(...told.kinds.map((kind, i) => {
      const fill = h("span", { class: "bar-fill personal" });
      fill.style.width = `${((100 * told.sent[i]) / most).toFixed(1)}%`;
      return h("div", { class: "level wide-name" }, h("span", { class: "level-name", text: kind }), h("span", { class: "bar" }, fill), h("span", { class: "number", text: size(told.sent[i]) }));
    }));
  }

  function listen() {
    const asked = new URLSearchParams({ id });
    if (metric !== null) asked.set("metric", metric);
    if (round !== null) asked.set("round", round);
    if (head !== null && head.clients > 40) for (const client of [...chosen].slice(0, 12)) asked.append("client", client);
    follow("/api/run", asked, {
      head: (told) => {
        head = told;
        offset = told.now - Date.now() / 1000;
        drawHead();
        rounds.update(undefined, told.known_rounds, told.state === "running");
        clients.running = told.state === "running";
      },
      curves: (told) => { curves = told; drawCurves(); clients.update(null, curves.metric); drawFacts(); },
      lines: (told) => { lines = told; drawCurves(); clients.setLines(told); },
      terms: (told) => {
        const colours = ["c-own", "c-global", ...OTHERS];
        termsCard.hidden = told.length === 0;
        terms.update(told.map((line, i) => ({ ...line, colour: colours[i % colours.length] })), [], head?.rounds ?? null);
      },
      clients: (told) => { clients.update(told, curves?.metric ?? head?.metric ?? { percent: true }); drawSent(told); },
      faults: (told) => clients.setFaults(told),
      round: (told) => rounds.update(told),
    }, () => {
      if (head === null) content.replaceChildren(h("p", { class: "empty big", text: `There is no run ${id} below the watched folder.` }), h("p", {}, h("a", { href: "#/", text: "To all runs" })));
    });
  }

  const timer = setInterval(() => { drawFacts(); clients.draw(); }, 1000);
  listen();
  return () => clearInterval(timer);
}
