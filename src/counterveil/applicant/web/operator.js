// The institution's page: numbers of one server, refreshed every few seconds. The token stays in this tab's memory.

import { make } from "./elements.js";
import { firstSpoken, LANGUAGES, remember, remembered, speak, SPOKEN, WORDS } from "./strings.js";

/**
 * What the server reports.
 * @typedef {object} Status
 * @property {number} server
 * @property {number} servers
 * @property {number} hours since it began
 * @property {string | null} trouble why it is not ready
 * @property {number} questions that it answered
 * @property {boolean} open whether everyone makes their own tickets
 * @property {number | null} issued tickets
 * @property {number} held requests in the ledger
 * @property {number} rows or regions
 * @property {boolean} regions
 * @property {number} given rows or regions, at most
 * @property {number} k rows or regions that a ticket gives
 * @property {number} told bits about the other rows
 * @property {number | null} rebuilt_after tickets; null: no known attack rebuilds the rows
 * @property {Offer[]} offers
 * @property {number} leaked bits
 * @property {number | null} budget
 * @property {Linked | null} linked
 * @property {Minute[]} minutes
 */

/** @typedef {{ answered: number, refused: number }} Minute */
/** @typedef {{ terms: string, rows: number, ends: number | null, key: string, key_state: string, key_ends: number | null, state: string }} Offer */
/** @typedef {{ servers: { server: number, connections: number, milliseconds: number | null }[], complete: number, broke_off: number, rounds: number, bytes: number }} Linked */
/**
 * The page's elements by id.
 * @typedef {Record<"title" | "lead" | "speaking-label" | "token-label" | "open" | "status" | "facts", HTMLElement>
 *   & { enter: HTMLFormElement, token: HTMLInputElement, language: HTMLSelectElement }} Elements
 */

/** @type {<Id extends keyof Elements>(id: Id) => Elements[Id]} */
const $ = (id) => /** @type {Elements[typeof id]} */ (document.getElementById(id));
const SVG = "http://www.w3.org/2000/svg";
/** @type {number | undefined} */
let timer;
let draw = () => {}; // says once more what the server reported last, in another language

/** Write a number as the language does. @param {number} number */
const said = (number, digits = 0) => number.toLocaleString(SPOKEN, { maximumFractionDigits: digits });

/** @param {number | null} at seconds */
function when(at) {
  if (at === null) return WORDS.operator.never;
  return `${new Intl.DateTimeFormat(SPOKEN, { dateStyle: "medium", timeStyle: "short", timeZone: "UTC" }).format(1000 * at)} UTC`;
}

/**
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, string | number>} attributes
 */
function drawn(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/** @param {string} title @param {Minute[]} minutes @param {(minute: Minute) => number} pick */
function chart(title, minutes, pick) {
  const width = 600, height = 120, values = minutes.map(pick), most = Math.max(0, ...values);
  const about = WORDS.operator.minutes(said(values.length), said(most));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height + 1}`, role: "img", "aria-label": `${title}: ${about}` });
  const each = width / Math.max(60, values.length);
  values.forEach((value, i) => {
    const tall = (height * value) / Math.max(1, most);
    svg.append(drawn("rect", { x: width - (values.length - i) * each, y: height - tall, width: Math.max(1, each - 1), height: tall, class: "column" }));
  });
  svg.append(drawn("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }));
  return make("div", { className: "card" }, make("h2", {}, title), svg, make("p", { className: "soft" }, about)); // not in the picture, where a phone would shrink it
}

/** Say what the server reports: each fact's name, and the fact. @param {Status} status @returns {[name: string, value: string][]} */
function told(status) {
  const words = WORDS.operator, { names, states } = words, { questions, issued, regions, linked } = status;
  const left = issued === null ? "" : `, ${words.left(said(Math.max(0, issued - questions)), said(issued))}`;
  const least = said(Math.ceil(status.rows / status.k)), after = status.rebuilt_after;
  /** @type {[string, string][]} */
  const facts = [
    [names.server, words.server(status.server, status.servers, said(status.hours, 1))],
    [names.health, status.trouble ?? words.ready],
    [names.questions, words.questions(said(questions))],
    [names.tickets, status.open ? words.ticketsOpen : words.used(said(questions)) + left],
    [names.held, said(status.held)],
    [names.given, (regions ? words.regions : words.rows)(said(status.given), said(status.rows))],
    [names.told, status.told ? words.told(said(status.told)) : words.nothing],
    [names.attacks, after === null ? words.slowest(least, status.k, regions) : words.rebuilt(after, regions)],
  ];
  for (const offer of status.offers) {
    const key = words.key(offer.key, states[offer.key_state], when(offer.key_ends));
    facts.push([names.offer, `${words.terms(offer.terms, said(offer.rows), when(offer.ends))}; ${key} (${states[offer.state]})`]);
  }
  if (status.budget) facts.push([names.budget, words.budget(said(status.leaked), said(status.budget))]);
  if (linked) {
    const links = linked.servers.map((each) => words.link(each.server, each.connections, each.milliseconds === null ? "" : said(each.milliseconds, 3)));
    facts.push([names.linked, links.join("; ")], [names.attempts, words.attempts(said(linked.complete), said(linked.broke_off), said(linked.rounds), said(linked.bytes / 2 ** 20, 1))]);
  }
  return facts;
}

/** @param {Status} status */
function facts(status) {
  const rows = told(status).map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
  const card = make("div", { className: "card" }, make("h2", {}, WORDS.operator.now), make("table", {}, make("tbody", {}, ...rows)));
  if (status.budget) {
    const used = Math.min(1, status.leaked / status.budget), about = WORDS.operator.percent(said(100 * used));
    const bar = make("div", { className: "bar", role: "img", "aria-label": about });
    bar.style.width = `${100 * used}%`;
    card.append(make("p", {}, about), bar);
  }
  return card;
}

/** @param {string} text */
const complain = (text) => $("status").replaceChildren(make("p", { className: "card trouble" }, text));

/** @param {string} token */
async function refresh(token) {
  const response = await fetch("operator/status", { headers: { authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" });
  if (response.status === 401) {
    clearInterval(timer);
    $("enter").hidden = false;
    $("facts").hidden = true;
    complain(WORDS.operator.wrong);
    return;
  }
  /** @type {Status} */
  const status = await response.json();
  $("enter").hidden = true;
  $("status").replaceChildren();
  draw = () => $("facts").replaceChildren(
    facts(status),
    chart(WORDS.operator.answered, status.minutes, (m) => m.answered),
    chart(WORDS.operator.refused, status.minutes, (m) => m.refused),
  );
  draw();
  $("facts").hidden = false;
}

/** Say everything in the language that is spoken. */
function greet() {
  const words = WORDS.operator;
  document.documentElement.lang = SPOKEN;
  document.documentElement.dir = WORDS.direction;
  $("title").textContent = words.title;
  document.title = `Counterveil: ${words.title}`;
  $("lead").textContent = words.lead;
  $("speaking-label").textContent = WORDS.languages;
  $("token-label").textContent = words.token;
  $("open").textContent = words.open;
  $("status").replaceChildren();
  draw();
}

speak(remembered() ?? firstSpoken(navigator.languages));
$("language").replaceChildren(...Object.entries(LANGUAGES).map(([tag, words]) => make("option", { value: tag, lang: tag, selected: tag === SPOKEN }, words.language)));
$("language").addEventListener("change", () => {
  speak($("language").value);
  remember();
  greet();
});
greet();

$("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value;
  const again = () => refresh(token).catch(() => complain(WORDS.operator.silent));
  clearInterval(timer);
  timer = setInterval(again, 5000);
  again();
});
