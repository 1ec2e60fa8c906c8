// The applicant's client in the browser: it checks the terms, asks all servers at once, and explains the answer.

import { ENVELOPE, ID_BYTES, MOST_REHEARSED, PATIENCE, PUBLIC_KEY_BYTES, REHEARSALS, ROUTES, ROWS_A_STEP, STEP } from "./constants.js";
import { Conversation } from "./conversation.js";
import { Deployment, secretOf } from "./deployment.js";
import { explained } from "./explain.js";
import { uniform } from "./field.js";
import { addressOf, agreed, inCommon, isHex, offerOf, visit, visitAll } from "./manifests.js";
import { everyone, request, Signal, Trouble } from "./network.js";
import { concat, decodeTicket, headOf, isSigned, makeTicket, packVector, unhex } from "./wire.js";

/**
 * @typedef {import("./runs.js").Message} Message
 * @typedef {import("./network.js").Options} Options
 * @typedef {import("./preferences.js").Wishes} Wishes
 * @typedef {import("./schema.js").Levels} Levels
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./wire.js").Manifest} Manifest
 * @typedef {import("./wire.js").Terms} Terms
 * @typedef {import("./wire.js").Ticket} Ticket
 * @typedef {import("./strings.js").Text} Text
 */

/**
 * The keys that the page trusts.
 * @typedef {object} Trust
 * @property {string} issuer the key that must have signed the terms
 * @property {string[]} [operators] keys of servers that must be among those asked
 */

/**
 * Servers that agree on their terms, and what the client needs to ask them.
 * @typedef {object} Session
 * @property {Deployment} deployment
 * @property {Map<number, string>} peers addresses, by number
 * @property {Bytes} digest of the terms
 * @property {Bytes} key id of the servers' common key
 * @property {import("./wire.js").SignedTerms} issued
 * @property {string[]} missing addresses of servers that are out of reach, and that a ticket may do without
 * @property {Met} met
 * @property {string[]} operators
 * @property {Trust} trust
 * @property {Options} [options]
 * @property {number} began when the manifests had arrived
 * @property {number} step milliseconds
 */

/** @typedef {{ servers: string[], manifests: Manifest[], trust: Required<Trust> }} Met the servers that were reached, what they say of themselves under one offer, and whom the page trusts */
/** @typedef {(sent: Message, down: Bytes | null, length: number) => void} Watch called when a message was sent, and again when its reply has arrived */
/** @typedef {import("./conversation.js").Made & { ticket?: Ticket }} Attempt what was drawn for a question so far, and its ticket */

/**
 * Wait until a multiple of `step` after `began`, so that no server can measure how long the client computed.
 * @param {number} began
 * @param {number} step
 */
async function settle(began, step) {
  const until = began + step * Math.ceil((performance.now() - began + 1) / step);
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.floor(until - performance.now()) - 1)));
  while (performance.now() < until); // a timer counts whole milliseconds, so the last ones pass in this loop
}

// --- who is asked ----------------------------------------------------------------------------------------------------

const STILL_VALID = 60_000; // milliseconds for which what the servers show counts
const SPARE = 1000; // milliseconds of patience with a server that may turn out not to be needed

/**
 * Fetch all manifests and refuse servers that do not agree, before a byte of a question is sent.
 * @param {string[]} urls
 * @param {Trust} trust
 * @param {Options} [options]
 * @returns {Promise<Session>}
 */
export async function connect(urls, { issuer, operators = [] }, options) {
  if (!isHex(issuer, PUBLIC_KEY_BYTES)) throw new Trouble("no_issuer");
  const servers = urls.map(addressOf);
  if (new Set(servers).size < Math.max(2, servers.length)) throw new Trouble("addresses");
  const patience = Math.min(options?.patience ?? PATIENCE, servers.length > 2 ? SPARE : Infinity);
  const settled = await Promise.allSettled(servers.map((server) => visit(server, { ...options, patience })));
  const reached = new Map(settled.flatMap((each, i) => (each.status === "fulfilled" ? [[servers[i], each.value]] : [])));
  const errors = settled.flatMap((each) => (each.status === "rejected" ? each.reason : []));
  const other = errors.find((error) => error.code !== "unreachable");
  if (other || (errors.length && reached.size < 2)) throw other ?? errors[0];
  const chosen = await inCommon(reached, options);
  const met = { servers: [...chosen.keys()], manifests: [...chosen.values()], trust: { issuer, operators } };
  const began = performance.now();
  try {
    const { digest, terms } = await agreed(met);
    const peers = new Map(met.manifests.map((manifest, i) => [manifest.server, met.servers[i]])), [{ issued, key }] = met.manifests;
    const missing = servers.filter((server) => !met.servers.includes(server));
    const session = { deployment: new Deployment(terms), peers, digest, key: unhex(key), issued, missing, met, operators, trust: { issuer, operators }, options, began };
    return { ...session, step: await stepOf(session) };
  } catch (error) {
    if (errors.length && error instanceof Trouble && error.code === "impostor") throw errors[0]; // the server whose key is missed may be the one that is out of reach
    throw error instanceof Trouble ? error : new Trouble("terms", String(error));
  }
}

/**
 * Look once more for servers that were out of reach, if this ticket is for them.
 * @param {Session} session
 * @param {Ticket} ticket
 */
async function completed({ issued, missing, met, peers, options }, ticket) {
  const addresses = issued.addresses.map(addressOf), late = ticket.servers.map((n) => addresses[n - 1]).filter((server) => missing.includes(server));
  if (!late.length) return;
  const newer = await everyone(late.map((server) => visit(server, options))), offer = offerOf(met.manifests[0]);
  const manifests = await Promise.all(newer.map(async (manifest, i) =>
    offerOf(manifest) === offer ? manifest : (await visitAll(late[i], options)).find((each) => offerOf(each) === offer) ?? manifest));
  const all = { servers: [...met.servers, ...late], manifests: [...met.manifests, ...manifests], trust: met.trust };
  await agreed(all);
  Object.assign(met, all);
  for (const [i, { server }] of manifests.entries()) peers.set(server, late[i]);
  missing.splice(0, missing.length, ...missing.filter((server) => !late.includes(server)));
}

/**
 * Look again at what the servers offer, if that was long ago: the page may have been open for an hour. The newest offer that all
 * have is taken if its features are those of the form on the page. Otherwise the old one is, which servers may still answer.
 * @param {Session} session
 */
async function renewed(session) {
  if (performance.now() < session.began + STILL_VALID) return;
  const fresh = await connect([...session.met.servers, ...session.missing], session.trust, session.options);
  const { schema, terms } = session.deployment, { terms: newer } = fresh.deployment;
  if (JSON.stringify(newer.schema) !== JSON.stringify(terms.schema)) return;
  Object.assign(session, fresh, { deployment: new Deployment(newer, schema) }); // levels and wishes name features of the form's schema
}

/**
 * Return when a ticket that the applicant makes expires. The time is coarse, because the exact second of this computer's
 * clock could identify it.
 * @param {number} now
 * @param {number} window
 */
export function openExpiry(now, window) {
  const coarse = Math.max(1, Math.floor(window / 4));
  return Math.floor((now + Math.floor(window / 2)) / coarse) * coarse;
}

/** @param {Session} session @param {string} text */
async function admitted(session, text) {
  const { deployment, peers, operators } = session;
  const { terms } = deployment, { service, issuer, keys } = terms;
  let ticket;
  if (terms.tickets === "open") {
    /** @type {(n: number) => number} */
    const given = (n) => Number(operators.includes(keys[n - 1]));
    const known = [...peers.keys()].sort((a, b) => given(b) - given(a) || a - b);
    const servers = known.slice(0, deployment.needed()).sort((a, b) => a - b);
    const expires = openExpiry(Math.floor(Date.now() / 1000), terms.window);
    ticket = makeTicket({ expires, service, servers, reveal: deployment.reveals, k: terms.parameters.k });
  } else {
    try {
      ticket = decodeTicket(text);
    } catch {
      throw new Trouble(text.trim() ? "ticket_forged" : "ticket_missing");
    }
    if (!(await isSigned(issuer, ticket.signature, "ticket", ticket.signed))) throw new Trouble("ticket_forged");
    if (!ticket.servers.length) ticket.servers = Array.from({ length: deployment.needed(ticket.liars) }, (_, i) => i + 1);
    await completed(session, ticket);
  }
  if (ticket.service !== service) throw new Trouble("ticket_for_another_service");
  if (ticket.expires * 1000 <= Date.now()) throw new Trouble("ticket_expired");
  if (ticket.reveal !== deployment.reveals || !deployment.runs(ticket.servers.length, ticket.liars).length
    || ticket.liars > terms.robust || ticket.k > terms.parameters.k) throw new Trouble("ticket_not_offered");
  // The applicant trusts the operators whose keys the page holds, so each of their servers must get a share.
  const vouched = operators.every((each) => ticket.servers.some((n) => keys[n - 1] === each));
  if (!vouched || !ticket.servers.every((n) => peers.has(n))) throw new Trouble("ticket_for_other_servers");
  return ticket;
}

// --- a question ------------------------------------------------------------------------------------------------------

/**
 * Return the wishes that take longest to compile, of all that the page can express: every level of every feature is
 * compared with every limit.
 * @param {Deployment} deployment
 * @returns {Wishes}
 */
function heaviest({ schema, terms }) {
  const weight = terms.parameters.max_weight;
  return new Map(schema.costed.map((f) => [f, { weight, change: f.ordered ? "up" : "free", ...(f.kind === "numeric" ? { low: f.low, high: f.high } : {}) }]));
}

/**
 * Choose the step of time that hides how long the client computes: at least twice the longest of three measurements with
 * made-up answers. Sealed answers are left out, because they are evaluated as they arrive, and what is dealt is not
 * measured: the time that it takes depends on public sizes alone.
 * @param {Omit<Session, "step">} session
 */
async function stepOf(session) {
  const { terms, rows, sealed } = session.deployment, tried = Math.min(rows, MOST_REHEARSED);
  const deployment = new Deployment({ ...terms, rows: tried }), { q, length } = deployment;
  const servers = Array.from({ length: deployment.needed(terms.robust) }, (_, i) => i + 1);
  const ticket = { id: new Uint8Array(ID_BYTES), servers, liars: terms.robust, k: terms.parameters.k, bytes: new Uint8Array(256) };
  const own = new Map(deployment.schema.costed.map((feature) => [feature, 0])), wishes = heaviest(deployment);
  let longest = 0;
  for (let i = 0; i < REHEARSALS; i++) {
    let began = performance.now();
    const conversation = new Conversation({ ...session, deployment }, ticket, secretOf(deployment, own, wishes));
    const { sent } = await next(conversation);
    longest = Math.max(longest, performance.now() - began);
    if (sealed) continue;
    const answer = packVector(uniform(q, length), q); // the same answer from all servers, so that they agree
    for (const { line } of sent) {
      conversation.heard(line, concat(headOf({ kind: "answer", server: line.server, ticket: ticket.id, request: 0, among: servers }, answer.length), answer));
      conversation.ended(line);
    }
    began = performance.now();
    await next(conversation);
    longest = Math.max(longest, ((performance.now() - began) * rows) / tried);
  }
  return Math.max(STEP * (sealed ? 1 : 1 + Math.floor(rows / ROWS_A_STEP)), 2 * longest);
}

/**
 * Return what a conversation wants now: the messages to send, and before that whether to wait for the next step of time, and
 * for how many seconds.
 * @param {Conversation} conversation
 */
async function next(conversation) {
  const sent = [];
  let isPaused = false, seconds = 0;
  for await (const doing of conversation.todo()) {
    if (doing.what === "hang up") break;
    if (doing.what === "send") sent.push(doing);
    else if (doing.what === "wait") ({ seconds } = doing);
    else isPaused = true;
  }
  return { sent, isPaused, seconds };
}

/**
 * Send one message to one server, and hand its reply to the conversation; wait while the conversation wants no more.
 * @param {Session} session
 * @param {Conversation} conversation
 * @param {import("./conversation.js").Sending} sending
 * @param {Signal} signal
 * @param {Watch} watch
 */
async function post({ peers, options }, conversation, sending, signal, watch) {
  const { line } = sending, { kind, server } = sending.message, address = peers.get(server) ?? "";
  const patience = ["attempt", "collect"].includes(kind) ? 0 : options?.patience; // the conversation itself knows what to send if an attempt fails
  /** @type {(count: number) => void} */
  const sent = (count) => conversation.uploaded(line, count);
  let length = 0;
  const into = {
    begin: () => {
      length = 0;
      conversation.again(line);
    },
    /** @param {Bytes} data */
    take: async (data) => {
      length += data.length;
      conversation.heard(line, data);
      while (!conversation.wants(line)) await signal.wait();
    },
    taken: () => conversation.taken(line),
  };
  try {
    const message = await conversation.whole(sending);
    const coming = request(address, ROUTES[kind][0], message.bytes, conversation.expected(line) + ENVELOPE, { ...options, patience, sent }, into);
    watch(message, null, 0);
    await coming;
    watch(message, null, length);
    watch(message, conversation.ended(line), length);
  } catch (error) {
    conversation.broke(line, error); // `todo` throws it when all other replies have ended
  }
}

/**
 * Carry a conversation's messages until it says to hang up. A page cannot close connections: the browser decides when.
 * So nothing is done then, and the pauses around it are skipped.
 * @param {Session} session
 * @param {Conversation} conversation
 * @param {Signal} signal
 * @param {Watch} watch
 */
async function carry(session, conversation, signal, watch) {
  for (let began = performance.now(); ; began = performance.now()) {
    const { sent, isPaused, seconds } = await next(conversation);
    if (!sent.length) return;
    if (isPaused) await settle(began, session.step);
    if (seconds) await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    await Promise.all(sent.map((each) => post(session, conversation, each, signal, watch)));
  }
}

/**
 * Ask a question and explain the records. With the `attempt` of a question that broke off, send the same bytes again, or go
 * on with the attempts of servers that talk to each other.
 * @param {Session} session
 * @param {string} ticketText
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Watch} watch
 * @param {Attempt} attempt
 * @param {import("./conversation.js").Progress} progress
 */
export async function ask(session, ticketText, own, wishes, watch = () => {}, attempt = {}, progress = () => {}) {
  if (!attempt.ticket) await renewed(session);
  const { deployment, step } = session, signal = new Signal();
  const ticket = (attempt.ticket ??= await admitted(session, ticketText));
  const options = { made: attempt, progress, moved: () => signal.move(), patience: session.options?.patience ?? PATIENCE };
  const conversation = new Conversation(session, ticket, secretOf(deployment, own, wishes), options);
  await conversation.play();
  await settle(session.began, step); // hides how long the question took to compile
  await carry(session, conversation, signal, watch);
  // That was the last message, so no server can notice what happens from here on.
  return explained(deployment, conversation, own, wishes);
}
