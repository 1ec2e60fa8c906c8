// What the page shows before a question is asked: whom it asks and what the words mean, and then the whole question once
// more. No connection is opened for a question before the person has seen it and said so.

import { calledAt } from "./manifests.js";
import { make } from "./elements.js";
import { grouped, hardness, limitsOf } from "./form.js";
import { ruled } from "./preferences.js";
import { capital, WORDS } from "./strings.js";
import { decodeTicket } from "./wire.js";

/**
 * @typedef {import("./client.js").Session} Session
 * @typedef {import("./kept.js").Placed} Placed
 * @typedef {import("./schema.js").Feature} Feature
 */

/**
 * Name the servers that are asked: those of the ticket, or all.
 * @param {Session} session
 */
export function askedOf(session, ticket = "") {
  let numbers = [...session.peers.keys()].sort((a, b) => a - b);
  if (ticket) {
    const { servers, liars } = decodeTicket(ticket);
    numbers = servers.length ? servers : Array.from({ length: session.deployment.needed(liars) }, (_, i) => i + 1); // none: the first ones
  }
  return WORDS.joined(numbers.map((n) => calledAt(session, session.peers.get(n) ?? session.issued.addresses[n - 1] ?? String(n))));
}

/** Say in three steps what to do, and what the words mean. @param {Session} session */
export function introduction(session) {
  const who = askedOf(session), isOpen = session.deployment.terms.tickets === "open", steps = WORDS.steps(who);
  /** @type {(what: string, means: string) => HTMLElement} */
  const told = (what, means) => make("p", {}, make("strong", {}, what), ` ${means}`);
  const words = make("details", {}, make("summary", {}, WORDS.good), ...(isOpen ? [] : [told(WORDS.ticketWhat, WORDS.ticketMeans)]),
    told(WORDS.serversWhat, WORDS.serversMean(who)), told(WORDS.mayWhat, WORDS.mayMeans), told(WORDS.hardWhat, WORDS.hardMeans));
  return [make("ol", {}, ...steps.map((step) => make("li", {}, step))), make("p", {}, isOpen ? WORDS.stepsOpen : WORDS.stepsTicket), words];
}

/** Say whether a feature may change. @param {Feature} f @param {import("./preferences.js").Wish} wish @param {number} most */
function mayChange(f, wish, most) {
  const { change = ruled(f).change, weight = f.effort } = wish, hard = hardness(weight, most), [easy] = WORDS.scale;
  const more = change === "locked" ? [] : [hard === easy ? "" : hard, limitsOf(f, wish)];
  return [WORDS.change[change], ...more].filter(Boolean).join("; ");
}

/**
 * Show the whole question, and ask it only if the person says so.
 * @param {Session} session
 * @param {Placed & { ticket: string }} asked
 * @param {() => void} ask
 * @param {() => void} back
 */
export function reviewCard(session, { before, wishes, ticket, unlike }, ask, back) {
  const { terms } = session.deployment, isOpen = terms.tickets === "open", most = terms.parameters.max_weight, words = WORDS.review;
  const head = make("tr", {}, ...[WORDS.feature, words.yours, words.may].map((text) => make("th", { scope: "col" }, text)));
  const rows = grouped([...before.keys()]).flatMap(([heading, features]) => [
    ...(heading ? [make("tr", { className: "heading" }, make("th", { colSpan: 3, scope: "colgroup" }, heading))] : []),
    ...features.map((f) => make("tr", {}, make("th", { scope: "row" }, capital(f.title)), make("td", { className: "after" }, f.show(before.get(f))), make("td", {}, mayChange(f, wishes.get(f) ?? {}, most)))),
  ]);
  const notes = [...(wishes.fewest ? [words.fewest] : []), ...(unlike ? [words.unlike(unlike)] : []), words.who(askedOf(session, isOpen ? "" : ticket))];
  return make("div", { className: "card" }, make("h2", {}, words.title), make("p", { className: "sentence" }, isOpen ? words.costOpen : words.cost),
    make("table", { className: "asked" }, make("thead", {}, head), make("tbody", {}, ...rows)), ...notes.map((note) => make("p", {}, note)),
    make("div", { className: "way" }, make("button", { type: "button", id: "ask", onclick: ask }, isOpen ? words.askOpen : words.ask),
      make("button", { type: "button", id: "back", className: "quiet", onclick: back }, words.back)));
}
