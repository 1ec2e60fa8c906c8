// The applicant's page: an HTML form made from the schema, the answer, and the bytes that left this computer.
// It stores nothing: what is typed is gone when the page is closed. A link that opened it stays in the browser's history.

import { answerCard, leftCard } from "./answer.js";
import { addressOf, ask, connect, isLoopback } from "./client.js";
import { make } from "./elements.js";
import { Trouble } from "./network.js";
import { ruled, waysOf } from "./preferences.js";
import { SHOWN } from "./replies.js";
import { WORDS } from "./strings.js";
import { fingerprint } from "./wire.js";

/**
 * @typedef {import("./explain.js").Found} Found
 * @typedef {import("./preferences.js").Wish} Wish
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 */

/**
 * What the server wrote into the page.
 * @typedef {object} Config
 * @property {string[]} [servers]
 * @property {string} issuer
 * @property {string[]} [operators]
 * @property {boolean} [fixed] true: the page may ask no other address
 * @property {number | null} [rebuilt_after] tickets that rebuild the institution's rows
 * @property {number} [k] rows that a ticket gives
 */

/**
 * What was typed, and what was sent so far.
 * @typedef {object} Question
 * @property {Map<Feature, Value>} before
 * @property {import("./schema.js").Levels} own
 * @property {import("./preferences.js").Wishes} wishes
 * @property {string} ticket
 * @property {import("./client.js").Attempt} attempt
 * @property {Map<string, import("./answer.js").Sent>} messages
 * @property {boolean} [answered] whether a server has said anything
 * @property {boolean} [spent] whether its ticket was taken out of the field
 */

/** @typedef {{ value: () => Value, wish: () => Wish }} Control */
/**
 * The page's elements by id.
 * @typedef {Record<"title" | "lead" | "status" | "features" | "ticket-row" | "tickets" | "asks" | "answer" | "left" | "keys" | "lasts" | "trust", HTMLElement>
 *   & { form: HTMLFormElement, fewest: HTMLInputElement, "fewest-label": HTMLElement, ticket: HTMLTextAreaElement, "ticket-label": HTMLLabelElement, ask: HTMLButtonElement, download: HTMLAnchorElement, config: HTMLScriptElement }} Elements
 */

/** @type {<Id extends keyof Elements>(id: Id) => Elements[Id]} */
const $ = (id) => /** @type {Elements[typeof id]} */ (document.getElementById(id));
/** @type {Record<string, string | undefined>} */
const AFTER_AN_ANSWER = { other_terms: "renewed", other_key: "renewed", peer_unreachable: "unreachable" }; // refusals that leave a ticket unused, and what they mean if a server has answered before
const SLOW = 5000; // milliseconds after which the page says that it still waits

/** @type {import("./client.js").Session} */
let session; // set when the form is drawn
/** @type {Map<Feature, Control>} */
let controls = new Map();

// What follows the # is removed from the address bar, because whoever sees a ticket may use it. The browser's history keeps
// it. So a link may carry tickets, which are soon used, but no personal data, except to a demonstration on this machine.
const fragment = new URLSearchParams(location.hash.slice(1));
if (location.hash) history.replaceState(null, "", location.pathname + location.search);
/** @type {Config} */
const config = JSON.parse($("config").textContent ?? "");
/** @type {Record<string, Value>} */
let person = {};
try {
  if (isLoopback(location.hostname)) person = Object(JSON.parse(fragment.get("person") ?? "{}"));
} catch { /* not ours */ }
const linked = fragment.getAll("server");
let servers = linked.length && !config.fixed ? linked : config.servers ?? [];
let spent = 0; // how many tickets were used

/** @param {...Node} nodes */
function say(...nodes) {
  $("status").replaceChildren(...nodes);
}

/**
 * Say what the page waits for, and after a while that it still waits. Without words, what was said stays.
 * @param {...(Node | string)} said
 */
function wait(...said) {
  if (said.length) say(make("p", { className: "card" }, make("span", { className: "spinner" }), ...said));
  return setTimeout(() => say(make("p", { className: "card" }, make("span", { className: "spinner" }), WORDS.slow)), SLOW);
}

/** @param {HTMLElement} way */
function addresses(way) {
  const box = make("textarea", { id: "servers", rows: 3, cols: 34, value: servers.join("\n") });
  const use = make("button", { type: "button", className: "quiet", onclick: () => start(box.value.split(/\s+/).filter(Boolean)) }, WORDS.connect);
  way.append(make("label", { htmlFor: "servers" }, make("div", {}, WORDS.addresses), box), use);
}

/** @param {unknown} error @param {() => void} [again] */
function trouble(error, again) {
  const told = error instanceof Trouble ? error : new Trouble("refused");
  const known = Object.hasOwn(WORDS.trouble, told.code) ? told.code : "refused";
  const [heading, text] = WORDS.trouble[known];
  const about = known === "form" ? told.detail : told.server;
  const detail = known === "input" ? told.detail : about ? `${text} (${about})` : text;
  const way = make("div", { className: "way" });
  if (!config.fixed && ["addresses", "plain", "unreachable", "disagree", "impostor", "ticket_for_other_servers"].includes(known)) addresses(way);
  if (again) way.append(make("button", { type: "button", onclick: again }, WORDS.again));
  const card = make("div", { className: "card trouble" }, make("h2", {}, heading), make("p", {}, detail), way);
  card.dataset.code = known;
  say(card);
}

/** @param {string[]} chosen */
async function start(chosen) {
  servers = chosen;
  $("form").hidden = $("answer").hidden = $("left").hidden = true;
  const slow = wait(WORDS.loading);
  try {
    session = await connect(servers, config);
    clearTimeout(slow);
    say();
    await draw();
  } catch (error) {
    clearTimeout(slow);
    trouble(error, () => start(servers));
  }
}

async function draw() {
  const { schema, terms } = session.deployment;
  controls = new Map();
  $("features").replaceChildren(...schema.costed.map((feature, i) => card(feature, i, Object.hasOwn(person, feature.name) ? person[feature.name] : undefined)));
  $("ticket-row").hidden = terms.tickets === "open";
  if (session.deployment.regions && config.rebuilt_after === null) $("lasts").textContent = WORDS.lastsRegions;
  $("asks").textContent = WORDS.asked([...session.peers.values()].join(", "));
  const keys = [...session.peers].map(async ([n, url]) => make("li", {}, `${WORDS.server(n, url)}: `, make("code", {}, await fingerprint(terms.keys[n - 1]))));
  $("keys").replaceChildren(make("p", {}, WORDS.keys), make("ul", {}, ...await Promise.all(keys)));
  $("form").hidden = false;
}

/** @param {Feature} feature @param {number} i @param {Value | undefined} start */
function card(feature, i, start) {
  const [input, value] = valueControl(feature, `f${i}`, start);
  const [details, wish] = wishControl(feature, `w${i}`);
  controls.set(feature, { value, wish });
  return make("fieldset", {}, make("legend", {}, feature.title), input, details);
}

/** @param {Feature} feature @param {string} id @param {Value | undefined} start @returns {[HTMLElement, () => Value]} */
function valueControl(feature, id, start) {
  const label = feature.title;
  const optional = feature.missing === "level";
  if (feature.kind === "boolean" && !optional) {
    const box = make("input", { type: "checkbox", id, checked: start === true });
    return [make("label", { className: "value", htmlFor: id }, box, feature.title), () => box.checked];
  }
  if (feature.kind !== "numeric") {
    const options = feature.values.map((v, n) => make("option", { value: n }, feature.show(v)));
    if (optional) options.unshift(make("option", { value: -1 }, WORDS.missing));
    const select = make("select", { id, "aria-label": label }, ...options);
    const at = feature.values.findIndex((v) => v === start);
    select.value = String(at < 0 && !optional ? 0 : at);
    return [make("div", { className: "value" }, select), () => feature.values[Number(select.value)] ?? null];
  }
  const middle = feature.value(Math.round(feature.steps / 2));
  const first = typeof start === "number" ? start : start === null && optional ? "" : middle;
  const number = make("input", { type: "number", id, step: "any", min: feature.low, max: feature.high, value: first, "aria-label": label });
  const slider = make("input", { type: "range", min: 0, max: feature.steps, step: 1, "aria-label": WORDS.slider(label) });
  const follow = () => {
    if (number.value !== "") slider.value = String(feature.code(Number(number.value)));
    slider.setAttribute("aria-valuetext", number.value === "" ? WORDS.missing : feature.show(Number(number.value)));
  };
  slider.oninput = () => {
    number.value = String(feature.value(Number(slider.value)));
    follow();
  };
  number.oninput = follow;
  follow();
  const read = () => {
    if (number.value === "" && optional) return null;
    const value = Number(number.value);
    if (number.value === "" || value < feature.low || value > feature.high)
      throw new Trouble("input", WORDS.range(label, feature.show(feature.low), feature.show(feature.high)));
    return value;
  };
  return [make("div", {}, make("div", { className: "value" }, number, make("span", { className: "unit" }, feature.unit)), slider), read];
}

/** @param {Feature} feature @param {string} id @returns {[HTMLElement, () => Wish]} */
function wishControl(feature, id) {
  const maxWeight = session.deployment.terms.parameters.max_weight;
  const ways = waysOf(feature), usual = ruled(feature);
  const change = make("select", { id: `${id}c` }, ...ways.map((way) => make("option", { value: way, selected: way === usual.change }, WORDS.change[way])));
  const weight = make("input", { type: "range", id: `${id}h`, min: feature.override ? 1 : feature.effort, max: maxWeight, value: feature.effort });
  const summary = make("summary", {});
  /** @type {HTMLElement[]} */
  const rows = [
    make("label", { htmlFor: change.id }, WORDS.may, change),
    make("label", { htmlFor: weight.id }, WORDS.reluctance, weight),
  ];
  /** @type {HTMLInputElement[]} */
  const bounds = [];
  if (feature.kind === "numeric") {
    for (const [end, name] of /** @type {const} */ ([[feature.low, WORDS.from], [feature.high, WORDS.to]])) {
      bounds.push(make("input", { type: "number", step: "any", placeholder: feature.show(end), "aria-label": `${feature.title}: ${name}` }));
    }
    rows.push(make("div", {}, WORDS.between, make("span", { className: "pair" }, bounds[0], WORDS.and, bounds[1])));
  }
  const chosen = () => ways[change.selectedIndex];
  /** @type {(input: HTMLInputElement | undefined) => number | undefined} */
  const limit = (input) => (input === undefined || input.value === "" ? undefined : Number(input.value));
  /** @type {() => Wish} */
  const wish = () => ({ change: chosen(), weight: Number(weight.value), low: limit(bounds[0]), high: limit(bounds[1]) });
  const details = make("details", {}, summary, ...rows);
  const sum = () => {
    const { low, high } = wish();
    const range = low !== undefined || high !== undefined ? `, ${low ?? "…"} – ${high ?? "…"}` : "";
    const hard = Number(weight.value) > 1 ? `, ${WORDS.hard} ×${weight.value}` : "";
    summary.textContent = WORDS.change[chosen()] + hard + range;
  };
  sum();
  details.oninput = sum;
  return [details, wish];
}

const tickets = () => $("ticket").value.split(/\s+/).filter(Boolean);

function countTickets() {
  $("tickets").textContent = WORDS.tickets(tickets().length);
}

/** @param {string[]} all */
function keep(all) {
  $("ticket").value = all.join("\n");
  countTickets();
}

/**
 * Remove a ticket that was sent: it answers no other question.
 * @param {string} ticket
 */
function spend(ticket) {
  spent += 1;
  keep(tickets().filter((each) => each !== ticket));
}

/**
 * Put a ticket back that no server accepted: it can still answer a question.
 * @param {string} ticket
 */
function giveBack(ticket) {
  spent -= 1;
  keep([ticket, ...tickets().filter((each) => each !== ticket)]);
}

/** @param {SubmitEvent} event */
function submit(event) {
  event.preventDefault();
  try {
    const before = new Map([...controls].map(([feature, control]) => [feature, control.value()]));
    const own = new Map([...before].map(([feature, value]) => [feature, feature.code(value)]));
    const wishes = Object.assign(new Map([...controls].map(([feature, control]) => [feature, control.wish()])), { fewest: $("fewest").checked });
    const [ticket = ""] = tickets();
    if (!ticket && spent && session.deployment.terms.tickets !== "open") throw new Trouble("ticket_none_left");
    question({ before, own, wishes, ticket, attempt: {}, messages: new Map() });
  } catch (error) {
    trouble(error instanceof Error && !(error instanceof Trouble) ? new Trouble("input", error.message) : error);
  }
}

/**
 * Return what reports how far a question has come: first how much was sent, if that is much, then how much has arrived.
 * @param {(...said: (Node | string)[]) => void} tell
 * @returns {import("./conversation.js").Progress}
 */
function reporting(tell) {
  const bar = make("progress", { max: 1 }), percent = make("span", { "aria-hidden": "true" }); // the bar says it to those who do not see it
  let stage = "";
  return (done, total, isSent) => {
    const next = !isSent ? "receiving" : done < total ? "sending" : "working";
    bar.value = done / total;
    percent.textContent = ` ${Math.floor((100 * done) / total)} % `;
    if (next === stage && (bar.isConnected || next === "working")) tell(); // words that are said again would be read out again
    else if (next === "receiving") tell(WORDS.evaluating(total), bar);
    else if (next === "sending") tell(WORDS.sending, percent, bar);
    else tell(WORDS.working);
    bar.setAttribute("aria-label", WORDS[next]);
    stage = next;
  };
}

/**
 * Ask the question; if a server cannot be reached, offer to send the same bytes again.
 * @param {Question} asked
 */
async function question(asked) {
  const { before, own, wishes, ticket, attempt, messages } = asked;
  $("answer").hidden = $("left").hidden = true;
  $("ask").disabled = true;
  let slow = wait(WORDS.asking);
  // Keep bytes to the first server, and only the sizes of the others: bytes to two servers together tell the question.
  /** @type {import("./client.js").Watch} */
  const watch = ({ kind, server, request, run, bytes, body }, down, length) => {
    if (!asked.spent && ticket) spend(ticket);
    asked.spent = true;
    asked.answered ||= length > 0;
    const shown = server === attempt.ticket?.servers[0] ? { body: body.slice(0, SHOWN), down } : {};
    messages.set(`${run}/${server}/${kind}/${request}`, { server, up: bytes.length, length, ...shown });
  };
  const progress = reporting((...said) => {
    clearTimeout(slow);
    slow = wait(...said);
    if (said.length) $("status").scrollIntoView({ block: "nearest" });
  });
  try {
    const found = await ask(session, ticket, own, wishes, watch, attempt, progress);
    say();
    show(found, before);
    $("answer").focus({ preventScroll: true });
    $("answer").scrollIntoView({ block: "start" });
  } catch (error) {
    const code = error instanceof Trouble ? error.code : "", after = AFTER_AN_ANSWER[code];
    if (after && ticket && !asked.answered) {
      giveBack(ticket);
      asked.spent = false;
    }
    const again = ["unreachable", "peer_unreachable"].includes(code) ? () => question(asked) : undefined;
    trouble(after && asked.answered ? new Trouble(after) : error, again);
    $("status").scrollIntoView({ block: "nearest" });
  } finally {
    clearTimeout(slow);
    $("ask").disabled = false;
    if (messages.size) {
      $("left").replaceChildren(leftCard(session, [...messages.values()], own, wishes));
      $("left").hidden = false;
    }
  }
}

/** @param {Found} found @param {Map<Feature, Value>} before */
function show(found, before) {
  const [{ codes }] = found.explanations;
  $("answer").replaceChildren(answerCard(session.deployment, found, before));
  $("answer").dataset.codes = JSON.stringify([...codes].map(([f, code]) => [f.name, code]));
  $("answer").hidden = false;
}

$("title").textContent = document.title = WORDS.title;
$("lead").textContent = WORDS.lead;
$("trust").textContent = WORDS.trust(location.host);
if (config.rebuilt_after !== undefined) $("lasts").textContent = WORDS.lasts(config.rebuilt_after, config.k ?? 1);
$("download").textContent = WORDS.download;
$("ticket-label").textContent = WORDS.ticket;
$("ask").textContent = WORDS.ask;
$("fewest-label").textContent = WORDS.fewest;
if (!location.protocol.startsWith("http")) $("trust").parentElement?.setAttribute("hidden", "");
$("form").addEventListener("submit", submit);
$("ticket").value = fragment.getAll("ticket").join("\n").trim();
$("ticket").addEventListener("input", countTickets);
countTickets();

/**
 * Say whether a link names an address that is not the page's own.
 * @param {string} address
 */
function isForeign(address) {
  try {
    return !config.servers?.map(addressOf).includes(addressOf(address));
  } catch {
    return true;
  }
}

if (config.fixed && linked.some(isForeign)) trouble(new Trouble("other"));
else start(servers);
