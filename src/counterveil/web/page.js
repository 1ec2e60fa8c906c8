// The applicant's page: a form drawn from the schema, an answer, and what left this computer. No data is kept anywhere.

import { ask, connect, secretOf, shares, Trouble } from "./client.js";
import { WORDS } from "./strings.js";
import { hex, packVector } from "./wire.js";

const $ = (id) => document.getElementById(id);
const SLOW = 5000; // milliseconds before the page says that it waits

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

let session = null;
let controls = new Map(); // feature -> { value(), wish() }

function given() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const config = JSON.parse($("config").textContent);
  const own = location.protocol.startsWith("http") ? [location.origin] : [];
  const named = fragment.getAll("server");
  const servers = named.length ? named : [...new Set([...config.servers, ...(config.servers.length ? [] : own)])];
  let person = {};
  try {
    person = JSON.parse(fragment.get("person") ?? "{}");
  } catch { /* not ours */ }
  return { servers, ticket: fragment.get("ticket") ?? "", person };
}

function say(...nodes) {
  $("status").replaceChildren(...nodes);
}

function wait(text) {
  say(make("p", { className: "card" }, make("span", { className: "spinner" }), text));
  return setTimeout(() => say(make("p", { className: "card" }, make("span", { className: "spinner" }), WORDS.slow)), SLOW);
}

function trouble(error, again) {
  const known = error instanceof Trouble && WORDS.trouble[error.code] ? error.code : error instanceof RangeError ? "input" : "refused";
  const [heading, text] = WORDS.trouble[known];
  const detail = known === "input" ? error.message : error.server ? `${text} (${error.server})` : text;
  const way = make("div", { className: "way" });
  if (["addresses", "unreachable", "disagree", "ticket_for_other_servers"].includes(known)) {
    const box = make("textarea", { id: "servers", rows: 3, cols: 34, value: given().servers.join("\n") });
    const use = make("button", { type: "button", className: "quiet", onclick: () => start(box.value.split(/\s+/)) }, WORDS.connect);
    way.append(make("label", { htmlFor: "servers" }, make("div", {}, WORDS.addresses), box), use);
  }
  if (again) way.append(make("button", { type: "button", onclick: again }, WORDS.again));
  const card = make("div", { className: "card trouble" }, make("h2", {}, heading), make("p", {}, detail), way);
  card.dataset.code = known;
  say(card);
}

async function start(servers = given().servers) {
  $("form").hidden = $("answer").hidden = $("left").hidden = true;
  const slow = wait(WORDS.loading);
  try {
    session = await connect(servers);
    clearTimeout(slow);
    say();
    draw();
  } catch (error) {
    clearTimeout(slow);
    trouble(error, () => start(servers));
  }
}

function draw() {
  const { person, ticket } = given();
  const { schema, terms } = session.deployment;
  controls = new Map();
  $("features").replaceChildren(...schema.costed.map((feature, i) => card(feature, i, person[feature.name])));
  $("ticket-row").hidden = terms.tickets === "open";
  if (ticket) $("ticket").value = ticket;
  $("form").hidden = false;
}

function card(feature, i, start) {
  const [input, value] = valueControl(feature, `f${i}`, start);
  const [details, wish] = wishControl(feature, `w${i}`);
  controls.set(feature, { value, wish });
  return make("fieldset", {}, make("legend", {}, feature.title), input, details);
}

function valueControl(feature, id, start) {
  const label = feature.title;
  if (feature.kind === "boolean") {
    const box = make("input", { type: "checkbox", id, checked: Boolean(start) });
    return [make("label", { className: "value", htmlFor: id }, box, feature.title), () => box.checked];
  }
  if (feature.kind !== "numeric") {
    const select = make("select", { id, "aria-label": label }, ...feature.values.map((v, n) => make("option", { value: n }, feature.show(v))));
    select.value = String(Math.max(0, feature.values.findIndex((v) => v === start)));
    return [make("div", { className: "value" }, select), () => feature.values[Number(select.value)]];
  }
  const middle = feature.value(Math.round(feature.steps / 2));
  const number = make("input", { type: "number", id, step: "any", min: feature.low, max: feature.high, value: start ?? middle, "aria-label": label, required: feature.missing === "refuse" });
  const slider = make("input", { type: "range", min: 0, max: feature.steps, step: 1, "aria-label": `${label}, slider`, value: feature.code(start ?? middle) });
  slider.setAttribute("aria-valuetext", feature.show(start ?? middle));
  slider.oninput = () => {
    number.value = feature.value(Number(slider.value));
    slider.setAttribute("aria-valuetext", feature.show(feature.value(Number(slider.value))));
  };
  number.oninput = () => {
    if (number.value !== "") slider.value = feature.code(Number(number.value));
  };
  const unit = make("span", { className: "unit" }, feature.unit);
  const read = () => {
    if (number.value === "") return null;
    const value = Number(number.value);
    if (value < feature.low || value > feature.high) throw new RangeError(`${label}: ${feature.show(feature.low)} to ${feature.show(feature.high)}`);
    return value;
  };
  return [make("div", {}, make("div", { className: "value" }, number, unit), slider), read];
}

function wishControl(feature, id) {
  const maxWeight = session.deployment.terms.parameters.max_weight;
  const ways = feature.ordered && feature.kind !== "boolean" ? ["free", "up", "down", "locked"] : ["free", "locked"];
  const change = make("select", { id: `${id}c` }, ...ways.map((way) => make("option", { value: way }, WORDS.change[way])));
  const weight = make("input", { type: "range", id: `${id}h`, min: 1, max: maxWeight, value: 1 });
  const summary = make("summary", {}, WORDS.freely);
  const rows = [
    make("label", { htmlFor: change.id }, WORDS.may, change),
    make("label", { htmlFor: weight.id }, WORDS.reluctance, weight),
  ];
  const bounds = [];
  if (feature.kind === "numeric") {
    for (const [end, name] of [["low", WORDS.from], ["high", WORDS.to]]) {
      bounds.push(make("input", { type: "number", step: "any", placeholder: feature.show(feature[end]), "aria-label": `${feature.title}: ${name}` }));
    }
    rows.push(make("div", {}, WORDS.between, make("span", { className: "pair" }, bounds[0], WORDS.and, bounds[1])));
  }
  const limit = (input) => (input === undefined || input.value === "" ? undefined : Number(input.value));
  const wish = () => ({ change: change.value, weight: Number(weight.value), low: limit(bounds[0]), high: limit(bounds[1]) });
  const details = make("details", {}, summary, ...rows);
  details.oninput = () => {
    const { low, high } = wish();
    const range = low !== undefined || high !== undefined ? `, ${low ?? "…"} – ${high ?? "…"}` : "";
    const hard = weight.value > 1 ? `, ${WORDS.hard} ×${weight.value}` : "";
    summary.textContent = WORDS.change[change.value] + hard + range;
  };
  return [details, wish];
}

async function submit(event) {
  event.preventDefault();
  $("answer").hidden = $("left").hidden = true;
  let own, wishes;
  try {
    own = new Map([...controls].map(([feature, control]) => [feature, feature.code(control.value())]));
    wishes = new Map([...controls].map(([feature, control]) => [feature, control.wish()]));
  } catch (error) {
    trouble(error);
    return;
  }
  const before = new Map([...controls].map(([feature, control]) => [feature, control.value()]));
  const messages = [];
  $("ask").disabled = true;
  const slow = wait(WORDS.asking);
  try {
    const found = await ask(session, $("ticket").value, own, wishes, (server, url, up, down) => messages.push({ server, url, up, down }));
    say();
    show(found, before);
    leftThisComputer(messages, own, wishes);
    $("answer").focus({ preventScroll: true });
    $("answer").scrollIntoView({ block: "start" });
  } catch (error) {
    trouble(error, error.code === "unreachable" ? () => $("form").requestSubmit() : undefined);
    $("status").scrollIntoView({ block: "nearest" });
  } finally {
    clearTimeout(slow);
    $("ask").disabled = false;
  }
}

export function sentence(found, before) {
  if (!found.feasible) return WORDS.relax(WORDS.joined(found.broken.map((f) => f.title)));
  if (!found.changes.length) return WORDS.same;
  const parts = found.changes.map((c) => {
    const verb = c.direction > 0 ? WORDS.raise : c.direction < 0 ? WORDS.lower : WORDS.alter;
    return WORDS.changed(verb, c.feature.title, c.feature.show(before.get(c.feature)), c.feature.show(c.value));
  });
  const text = WORDS.joined(parts);
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

function show(found, before) {
  const box = make("div", { className: "card" }, make("h2", {}, found.feasible ? WORDS.answer : WORDS.nothing));
  box.append(make("p", { className: "sentence", id: "sentence" }, sentence(found, before)));
  if (found.feasible && found.changes.length) {
    const head = make("tr", {}, ...[WORDS.feature, WORDS.now, WORDS.after].map((t) => make("th", { scope: "col" }, t)));
    const rows = found.changes.map((c) => {
      const bar = make("div", { className: "bar", role: "img", ariaLabel: WORDS.share(Math.round(100 * c.share)) });
      bar.style.width = `${Math.max(2, 100 * c.share)}%`;
      return make("tr", {}, make("th", { scope: "row" }, c.feature.title, bar), make("td", {}, c.feature.show(before.get(c.feature))),
        make("td", { className: "after" }, c.feature.show(c.value)));
    });
    box.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)), make("p", { className: "soft" }, `${WORDS.bars} ${WORDS.unchanged}`));
  }
  if (found.liars.length) box.append(make("p", {}, WORDS.lied(found.liars.join(", "))));
  $("answer").replaceChildren(box);
  $("answer").dataset.codes = JSON.stringify([...found.codes].map(([f, code]) => [f.name, code]));
  $("answer").hidden = false;
}

function picture(bytes, label) {
  const width = 48, height = Math.max(4, Math.min(24, Math.ceil(bytes.length / width)));
  const canvas = make("canvas", { width, height, role: "img", ariaLabel: label });
  const paint = canvas.getContext("2d");
  const image = paint.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const grey = bytes[i % bytes.length];
    image.data.set([grey, grey, grey, 255], 4 * i);
  }
  paint.putImageData(image, 0, 0);
  return canvas;
}

function leftThisComputer(messages, own, wishes) {
  const { deployment } = session;
  const servers = [...new Set(messages.map((m) => m.server))].sort((a, b) => a - b);
  const again = shares(deployment, servers, secretOf(deployment, own, wishes));
  const box = make("div", { className: "card" }, make("h2", {}, WORDS.left), make("p", {}, WORDS.leftLead));
  servers.forEach((server, i) => {
    const all = messages.filter((m) => m.server === server);
    const up = all.reduce((n, m) => n + m.up.length, 0), down = all.reduce((n, m) => n + m.down.length, 0);
    const payload = packVector(again[i], deployment.q);
    const sent = all[0].up.slice(-payload.length);
    const pair = make("div", { className: "noise" });
    for (const [title, bytes] of [[WORDS.seen, sent], [WORDS.otherwise, payload]]) {
      pair.append(make("div", {}, make("p", { className: "soft" }, title), picture(bytes, title), make("code", {}, `${hex(bytes.slice(0, 72))}…`)));
    }
    box.append(make("h3", {}, WORDS.sent(server, up.toLocaleString("en"), down.toLocaleString("en"))), pair);
  });
  $("left").replaceChildren(box);
  $("left").hidden = false;
}

$("title").textContent = document.title = WORDS.title;
$("lead").textContent = WORDS.lead;
$("trust").textContent = WORDS.trust;
$("download").textContent = WORDS.download;
$("ticket-label").textContent = WORDS.ticket;
$("ask").textContent = WORDS.ask;
if (!location.protocol.startsWith("http")) $("trust").parentElement.hidden = true;
$("form").addEventListener("submit", submit);
start();
