// The applicant's page: an HTML form made from the schema, the answer, and the bytes that left this computer.
// What is typed is gone when the page is closed. Answers stay in the tab until it is closed: see kept.js. A link that opened it stays in the browser's history.

import { leftCard } from "./answer.js";
import { checkingSection } from "./checking.js";
import { ask, connect } from "./client.js";
import { make } from "./elements.js";
import { Form } from "./form.js";
import { placed, Shelf } from "./kept.js";
import { addressOf, calledAt, isLoopback } from "./manifests.js";
import { Trouble } from "./network.js";
import { SHOWN } from "./replies.js";
import { askedOf, introduction, reviewCard } from "./review.js";
import { firstSpoken, LANGUAGES, remember, remembered, speak, SPOKEN, WORDS } from "./strings.js";
import { TicketBox } from "./ticketbox.js";
import { fingerprint, hex } from "./wire.js";

/**
 * @typedef {import("./explain.js").Found} Found
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
 * @property {number} [unlike] the number of the answer that this one should differ from
 */

/**
 * The page's elements by id.
 * @typedef {Record<"title" | "lead" | "status" | "intro" | "features" | "ticket-row" | "ticket-problem" | "tickets" | "check-why" | "review" | "anew" | "answer" | "left" | "keys" | "lasts" | "trust" | "speaking-label" | "fewest-label", HTMLElement>
 *   & { form: HTMLFormElement, fewest: HTMLInputElement, ticket: HTMLTextAreaElement, "ticket-label": HTMLLabelElement, check: HTMLButtonElement, language: HTMLSelectElement, download: HTMLAnchorElement, config: HTMLScriptElement }} Elements
 */
/** @typedef {"none" | "form" | "review" | "asking" | "answer"} Step where the person is */

/** @type {<Id extends keyof Elements>(id: Id) => Elements[Id]} */
const $ = (id) => /** @type {Elements[typeof id]} */ (document.getElementById(id));
/** @type {Record<string, string | undefined>} */
const AFTER_AN_ANSWER = { other_terms: "renewed", other_key: "renewed", peer_unreachable: "unreachable" }; // refusals that leave a ticket unused, and what they mean if a server has answered before
const SLOW = 5000; // milliseconds after which the page says that it still waits

/** @type {import("./client.js").Session} */
let session; // set when the form is drawn
/** @type {Form} */
let form; // likewise

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
const box = new TicketBox($("ticket"), $("tickets"));
let spent = 0; // how many tickets were used
/** @type {(() => void)[]} */
let shown = []; // what draws the parts that are on the page now once more, in another language

/**
 * Show one step of the way, and no other.
 * @param {Step} name
 */
function step(name) {
  $("form").hidden = name !== "form";
  $("review").hidden = name !== "review";
  $("review").replaceChildren();
  $("anew").hidden = name !== "answer";
  $("language").disabled = name === "asking"; // what is said of a question on its way is not said again
  shown = [];
}

/** @type {(...nodes: Node[]) => void} */
const say = (...nodes) => $("status").replaceChildren(...nodes);

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
  const given = make("textarea", { id: "servers", rows: 3, cols: 34, value: servers.join("\n") });
  const use = make("button", { type: "button", className: "quiet", onclick: () => start(given.value.split(/\s+/).filter(Boolean)) }, WORDS.connect);
  way.append(make("label", { htmlFor: "servers" }, make("div", {}, WORDS.addresses), given), use);
}

/** @param {unknown} error @param {() => void} [again] */
function trouble(error, again) {
  const told = error instanceof Trouble ? error : new Trouble("refused");
  const known = Object.hasOwn(WORDS.trouble, told.code) ? told.code : "refused";
  const [heading, text] = WORDS.trouble[known];
  const about = known === "form" ? told.detail : known.startsWith("ticket_") ? "" : told.server;
  const detail = known === "input" ? `${told.detail} ${text}` : about ? `${text} (${about})` : text;
  const way = make("div", { className: "way" });
  if (!config.fixed && ["addresses", "plain", "unreachable", "disagree", "impostor", "ticket_for_other_servers"].includes(known)) addresses(way);
  if (known.startsWith("ticket_") && session !== undefined) way.append(make("button", { type: "button", className: "quiet", onclick: () => box.show() }, WORDS.toTickets));
  if (again) way.append(make("button", { type: "button", onclick: again }, WORDS.again));
  const card = make("div", { className: "card trouble" }, make("h2", {}, heading), make("p", {}, detail), way);
  card.dataset.code = known;
  say(card);
  if (known !== "input") shown = [() => trouble(error, again)]; // a sentence about the form is in the form's own language
}

/** @param {string[]} chosen */
async function start(chosen) {
  servers = chosen;
  step("none");
  $("left").hidden = true;
  const slow = wait(WORDS.loading);
  try {
    session = await connect(servers, config);
    clearTimeout(slow);
    form = new Form($("features"), session.deployment, person);
    step("form");
    await draw();
  } catch (error) {
    clearTimeout(slow);
    trouble(error, () => start(servers));
  }
}

/** Draw what the session says around the form. */
async function draw() {
  const { terms, regions } = session.deployment, named = session.missing.map((url) => calledAt(session, url));
  say(...(named.length ? [make("p", { className: "card", id: "spare" }, WORDS.spare(WORDS.joined(named)))] : []));
  $("intro").replaceChildren(...introduction(session));
  $("ticket-row").hidden = terms.tickets === "open";
  if (regions && config.rebuilt_after === null) $("lasts").textContent = WORDS.lastsRegions;
  const keys = [...session.peers].map(async ([n, url]) => make("li", {}, `${WORDS.server(n, fullName(url))}: `, make("code", {}, await fingerprint(terms.keys[n - 1]))));
  $("keys").replaceChildren(make("p", {}, WORDS.keys), make("ul", {}, ...await Promise.all(keys)));
}

/** Name who runs a server, and its address. @param {string} url */
function fullName(url) {
  const name = calledAt(session, url);
  return name === url ? url : `${name}, ${url}`;
}

/**
 * Show a question once more before it is asked. Nothing is sent for it before the person says so.
 * @param {Question} asked
 */
function review(asked) {
  const { ticket } = asked;
  if (!ticket && session.deployment.terms.tickets !== "open") throw new Trouble(noTicket());
  try {
    askedOf(session, ticket);
  } catch {
    throw new Trouble("ticket_forged");
  }
  const back = () => {
    step("form");
    $("form").scrollIntoView({ block: "start" });
  };
  const show = () => $("review").replaceChildren(reviewCard(session, { ...asked, unlike: asked.unlike ?? 0 }, () => question(asked), back));
  say();
  shelf.retire();
  $("left").hidden = true;
  step("review");
  show();
  shown = [show];
  $("review").focus({ preventScroll: true });
  $("review").scrollIntoView({ block: "start" });
}

/**
 * Say what is wrong with the tickets beside them too.
 * @param {unknown} error
 */
function complain(error) {
  const isMissing = error instanceof Trouble && error.code === "input" && !box.tickets().length && session.deployment.terms.tickets !== "open";
  const code = !(error instanceof Trouble) ? "" : isMissing ? noTicket() : error.code;
  const isOfTicket = code.startsWith("ticket_") && Object.hasOwn(WORDS.trouble, code), [heading, text] = isOfTicket ? WORDS.trouble[code] : ["", ""];
  trouble(isMissing ? new Trouble("input", `${error.detail} ${heading}.`) : error);
  $("ticket-problem").textContent = isOfTicket ? `${heading}. ${box.tickets().length ? text : WORDS.pasteHere}` : "";
  $("ticket-problem").hidden = !isOfTicket;
  if (!form.showProblem() && isOfTicket) box.show();
}

/** Say why there is no ticket. */
const noTicket = () => (spent ? "ticket_none_left" : "ticket_missing");

/** @param {SubmitEvent} event */
function submit(event) {
  event.preventDefault();
  $("ticket-problem").hidden = true;
  try {
    const { before, wishes } = form.read(), [ticket = ""] = box.tickets();
    const own = new Map([...before].map(([feature, value]) => [feature, feature.code(value)]));
    review({ before, own, wishes: Object.assign(wishes, { fewest: $("fewest").checked }), ticket, attempt: {}, messages: new Map() });
  } catch (error) {
    complain(error);
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
  shelf.retire();
  step("asking");
  let slow = wait(WORDS.asking);
  // Keep bytes to the first server, and only the sizes of the others: bytes to two servers together tell the question.
  /** @type {import("./client.js").Watch} */
  const watch = ({ kind, server, request, run, bytes, body }, down, length) => {
    if (!asked.spent && ticket) {
      spent += 1;
      box.remove(ticket);
    }
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
    step("answer");
    show(found, { before, own, wishes, unlike: asked.unlike ?? 0 });
    $("answer").focus({ preventScroll: true });
    $("answer").scrollIntoView({ block: "start" });
  } catch (error) {
    const code = error instanceof Trouble ? error.code : "", after = AFTER_AN_ANSWER[code];
    if (after && ticket && !asked.answered) {
      spent -= 1;
      box.giveBack(ticket);
      asked.spent = false;
    }
    step("form");
    const again = ["unreachable", "peer_unreachable"].includes(code) ? () => question(asked) : undefined;
    trouble(after && asked.answered ? new Trouble(after) : error, again);
    $("status").scrollIntoView({ block: "nearest" });
  } finally {
    clearTimeout(slow);
    if (messages.size) {
      const left = () => $("left").replaceChildren(leftCard(session, [...messages.values()], own, wishes, fullName));
      left();
      shown.push(left);
      $("left").hidden = false;
    }
  }
}

/** @param {Found} found @param {import("./kept.js").Placed} asked */
function show(found, asked) {
  const [{ codes }] = found.explanations;
  shelf.add(session, found, asked);
  $("answer").dataset.codes = JSON.stringify([...codes].map(([f, code]) => [f.name, code]));
}

speak(remembered() ?? firstSpoken(navigator.languages));

// Ask for another answer than one that was kept, with the next ticket.
const shelf = new Shelf($("answer"), (item, wishes) => {
  const [ticket = ""] = box.tickets();
  try {
    if (session === undefined) throw new Trouble("unreachable");
    if (hex(session.digest) !== item.digest) throw new Trouble("renewed_since");
    review({ ...placed(session.deployment, { ...item, wishes, unlike: item.number }), ticket, attempt: {}, messages: new Map() });
  } catch (error) {
    if (session !== undefined) step("form");
    trouble(error, session === undefined ? () => start(servers) : undefined);
    $("status").scrollIntoView({ block: "nearest" });
  }
});

/** Say what does not depend on the servers. */
function greet() {
  document.documentElement.lang = SPOKEN;
  document.documentElement.dir = WORDS.direction;
  $("title").textContent = document.title = WORDS.title;
  $("lead").textContent = WORDS.lead;
  $("speaking-label").textContent = WORDS.languages;
  $("trust").textContent = WORDS.trust(location.host);
  if (config.rebuilt_after !== undefined) $("lasts").textContent = WORDS.lasts(config.rebuilt_after, config.k ?? 1);
  $("download").textContent = WORDS.download;
  $("ticket-label").textContent = WORDS.ticket;
  $("check").textContent = WORDS.toReview;
  $("check-why").textContent = WORDS.toReviewWhy;
  $("fewest-label").textContent = WORDS.fewest;
  anew.textContent = WORDS.anew;
  box.count();
}

/** Say everything that is on the page in another language; what was typed stays. */
async function translate() {
  speak($("language").value);
  remember();
  greet();
  const other = checkingSection(config.issuer);
  checking.replaceWith(other); // a file that was checked has to be chosen again
  checking = other;
  shelf.draw();
  if (session === undefined) return shown.forEach((again) => again());
  const typed = form.typed(), again = shown;
  form = new Form($("features"), session.deployment, {});
  form.type(typed);
  $("ticket-problem").hidden = true;
  await draw();
  return again.forEach((each) => each());
}

let checking = checkingSection(config.issuer);
$("left").after(checking);
const anew = make("button", { type: "button", className: "quiet", onclick: () => step("form") });
$("anew").replaceChildren(anew);
$("language").replaceChildren(...Object.entries(LANGUAGES).map(([tag, words]) => make("option", { value: tag, lang: tag, selected: tag === SPOKEN }, words.language)));
$("language").addEventListener("change", translate);
if (!location.protocol.startsWith("http")) $("trust").parentElement?.setAttribute("hidden", "");
$("form").addEventListener("submit", submit);
box.write(fragment.getAll("ticket"));
$("ticket").addEventListener("input", () => {
  box.count();
  $("ticket-problem").hidden = true; // it was about what was there before
});
$("status").before(shelf.note);
greet();

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
shelf.restore();
