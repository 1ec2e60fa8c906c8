// The applicant's side, in the browser: asks all servers at once, trusts none of them, and tells them nothing.

import { ANSWER_LIMIT, ANSWER_PATH, ENVELOPE, FIELD_LIMIT, ID_BYTES, KEY_BYTES, MANIFEST_LIMIT, MANIFEST_PATH, MOST_LIARS, MOST_REHEARSED, MOST_ROWS, MOST_SERVERS, PROTOCOL, PUBLIC_KEY_BYTES, RECORD_PATH, REHEARSALS, ROWS_A_STEP, SIGNATURE_BYTES, STEP } from "./constants.js";
import { bitsOf, honest, mod, smallestPrimeAbove, split, uniform, valueAt } from "./field.js";
import { answerBytes, evaluate, height } from "./garble.js";
import { everyone, Pipe, request, Trouble } from "./network.js";
import { allowedLevels, costTables, levelOf, Tariff } from "./preferences.js";
import { Schema } from "./schema.js";
import { makeSpir, unpackage } from "./spir.js";
import { decodeReply, decodeTicket, digestOf, encodeRequest, frame, headOf, isSigned, makeTicket, packedBytes, packVector, same, unhex, unpackVector } from "./wire.js";

/**
 * @typedef {import("./network.js").Options} Options
 * @typedef {import("./preferences.js").Wishes} Wishes
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Levels} Levels
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./wire.js").Manifest} Manifest
 * @typedef {import("./wire.js").Terms} Terms
 * @typedef {import("./wire.js").Ticket} Ticket
 */

/**
 * Whose word is taken.
 * @typedef {object} Trust
 * @property {string} issuer whose terms are taken
 * @property {string[]} [operators] keys of servers that must be among those asked
 */

/**
 * Servers that agree, and what was found out about them before anything is asked.
 * @typedef {object} Session
 * @property {Deployment} deployment
 * @property {Map<number, string>} peers addresses, by number
 * @property {Bytes} digest of the terms
 * @property {Bytes} key id of the servers' common key
 * @property {string[]} operators
 * @property {Options} [options]
 * @property {number} began when the manifests had come
 * @property {number} step milliseconds
 */

/** @typedef {Pick<Session, "deployment" | "digest" | "key">} Stage what messages are made for */
/** @typedef {Pick<Ticket, "servers" | "liars" | "k" | "bytes">} Admission what of a ticket messages are made from */

/**
 * A message, and how long the body of its answer must be.
 * @typedef {object} Message
 * @property {import("./wire.js").RequestKind} kind
 * @property {number} server
 * @property {number} request
 * @property {number[]} among
 * @property {Bytes} secret
 * @property {Bytes} body
 * @property {Bytes} bytes the whole
 * @property {number} expected
 */

/** @typedef {{ messages: Message[], package: (parts: Bytes[]) => Bytes }} RecordStep what is sent for one record, and what the answers make */

/**
 * What the answers say.
 * @typedef {object} Outcome
 * @property {number[]} kept places of the servers whose answers fit together
 * @property {number[]} positions of the nearest rows
 * @property {boolean} plausible whether costs can be as revealed
 * @property {bigint[] | null} costs
 * @property {Bytes | null} inside the record, if it came with the answers
 */

/** @typedef {Outcome & { began: number }} Found */
/** @typedef {(each: Message, pipe?: Pipe | null) => Promise<Bytes>} Send */
/** @typedef {(sent: Message, down: Bytes | null, length: number) => void} Watch sees when a message left and what came */
/** @typedef {(came: number, total: number) => void} Progress */
/** @typedef {{ ticket?: Ticket, asked?: Message[], steps?: RecordStep[] }} Attempt what a question has made so far */

/**
 * @typedef {object} Change
 * @property {Feature} feature
 * @property {number} before
 * @property {number} after
 * @property {import("./schema.js").Value} value
 * @property {number} direction
 * @property {number} share of all that it costs
 */

/**
 * @typedef {object} Explanation
 * @property {boolean} feasible
 * @property {Feature[]} broken
 * @property {Change[]} changes
 * @property {Levels} codes
 * @property {number[]} liars servers whose answers were corrected
 */

/** One deployment, as its servers' manifests describe it. */
export class Deployment {
  /** @param {Terms} terms */
  constructor(terms) {
    const { parameters } = terms;
    const [form, reveal] = parameters.scheme.split("/");
    this.form = form;
    this.reveal = reveal;
    if (terms.version !== PROTOCOL) throw new Trouble("terms", `version ${terms.version}`);
    if (this.form !== "table" || parameters.options !== undefined) throw new Trouble("form", this.form);
    const { servers, collusion, k, max_weight: maxWeight, d_min: dMin } = parameters;
    const whole = [servers, collusion, k, maxWeight, dMin, terms.rows].every((v) => Number.isSafeInteger(v) && v >= 1);
    const masked = this.reveal.startsWith("masked");
    this.inside = this.reveal === "sealed_record"; // the answer brings the record
    this.sealed = this.reveal === "sealed" || this.inside;
    const known = this.sealed || ["distances", "differences", "masked", "masked_differences"].includes(this.reveal);
    if (this.sealed && (servers !== 2 || collusion !== 1 || k !== 1 || terms.robust !== 0)) throw new Trouble("terms", "sealed");
    if (!whole || !Number.isInteger(terms.robust) || terms.robust < 0 || terms.robust > MOST_LIARS || !known || servers <= collusion || servers > MOST_SERVERS || terms.rows > MOST_ROWS || (masked ? k > 1 && dMin > 1 : dMin !== 1))
      throw new Trouble("terms", "parameters");
    this.terms = terms;
    this.schema = new Schema(terms.schema);
    this.collusion = collusion;
    this.differences = this.reveal.endsWith("differences");
    this.mask = masked ? dMin : 1;
    this.tariff = new Tariff(this.schema, maxWeight, dMin);
    this.q = BigInt(terms.q);
    this.alphas = terms.alphas.map(BigInt);
    this.top = this.tariff.bound + BigInt(this.mask) - 1n;
    const bound = this.differences ? 2n * this.top : this.top;
    if (bound >= FIELD_LIMIT / 2n) throw new Trouble("terms", "costs beyond any field"); // q is at most twice that, so that a random word holds an element
    const smallest = this.sealed ? 1n << BigInt(bound.toString(2).length) : smallestPrimeAbove(bound > BigInt(servers) ? bound : BigInt(servers));
    if (this.q !== smallest) throw new Trouble("terms", `q is ${this.q}, and should be ${smallest}`);
    const points = new Set(this.alphas.map((alpha) => (this.sealed ? alpha : mod(alpha, this.q))));
    if (this.alphas.length !== servers || points.size !== this.alphas.length || points.has(0n))
      throw new Trouble("terms", "alphas");
    this.rows = terms.rows;
    this.length = this.differences ? this.rows - 1 : this.rows;
    this.positions = this.sealed ? 2 ** height(this.rows) : this.rows;
    this.recordBytes = this.schema.recordBytes(terms.record) + SIGNATURE_BYTES + KEY_BYTES; // signed and packaged
    const largest = Math.max(...this.answers(1));
    if (!(largest < ANSWER_LIMIT)) throw new Trouble("terms", `answers of ${largest} bytes`);
  }

  /** What a question reveals, in one line, as tickets name it. */
  get reveals() {
    const { scheme, shuffle, d_min: dMin } = this.terms.parameters;
    return scheme.slice(scheme.indexOf("/") + 1) + (shuffle ? ", shuffled" : "") + (dMin > 1 ? `, mask below ${dMin}` : "");
  }

  /**
   * The bytes of the answer to one question, from each of so many servers.
   * @param {number} servers
   * @returns {number[]}
   */
  answers(servers) {
    const bits = bitsOf(this.q);
    return this.sealed ? answerBytes(this.rows, bits, this.inside ? this.recordBytes : 0) : Array(servers).fill(packedBytes(bits, this.length));
  }

  needed(liars = 0) {
    return this.collusion + 1 + 2 * liars;
  }

  /**
   * The costs of all rows, up to one shift where only differences are revealed.
   * @param {bigint[]} revealed
   */
  relative(revealed) {
    if (!this.differences) return revealed;
    const costs = [0n];
    for (const r of revealed) costs.push(costs[costs.length - 1] - (r > this.q / 2n ? r - this.q : r));
    return costs;
  }
}

/**
 * What is computed here ends on a multiple of a step, so that no server can time it.
 * @param {number} began
 * @param {number} step
 */
async function settle(began, step) {
  const until = began + step * Math.ceil((performance.now() - began + 1) / step);
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.floor(until - performance.now()) - 1)));
  while (performance.now() < until); // timers count whole milliseconds
}

// --- who is asked ----------------------------------------------------------------------------------------------------

/**
 * This machine, which nobody stands before.
 * @type {(hostname: string) => boolean}
 */
export const isLoopback = (hostname) => /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);

/**
 * An address as all others are compared with it. Over plain http, whoever is on the way to both servers reads the question.
 * @param {string} text
 */
export function addressOf(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) throw new Trouble("addresses");
  const address = url.origin + url.pathname.replace(/\/+$/, "");
  if (url.protocol === "http:" && !isLoopback(url.hostname)) throw new Trouble("plain", "", address);
  return address;
}

/** @type {(text: unknown, bytes: number) => text is string} */
const isHex = (text, bytes) => typeof text === "string" && text.length === 2 * bytes && /^[0-9a-f]*$/.test(text);
/** @type {(values: unknown, count: number, isFine: (value: unknown) => boolean) => boolean} */
const areDifferent = (values, count, isFine) => Array.isArray(values) && values.every(isFine) && values.length === count && new Set(values).size === count;

/** @param {Bytes} said @param {string} server @returns {Manifest} */
function readManifest(said, server) {
  try {
    const manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(said));
    const { key, instance, software, issued, signature } = manifest;
    const fine = Number.isInteger(manifest.server) && isHex(key, ID_BYTES) && isHex(instance, ID_BYTES) && isHex(signature, SIGNATURE_BYTES) && typeof software === "string"
      && typeof issued.terms === "string" && isHex(issued.signature, SIGNATURE_BYTES) && areDifferent(issued.addresses, issued.addresses.length, (each) => typeof each === "string");
    if (!fine) throw new Error();
    return manifest;
  } catch {
    throw new Trouble("malformed_answer", "manifest", server);
  }
}

/**
 * Refuse servers that do not go together, or are not who they say. Return the terms' digest, and the terms.
 * @param {string[]} servers
 * @param {Manifest[]} manifests
 * @param {Required<Trust>} trust
 */
async function agreed(servers, manifests, { issuer, operators }) {
  const [{ issued, key }] = manifests, numbers = manifests.map((manifest) => manifest.server);
  for (const [i, manifest] of manifests.entries()) {
    if (manifest.key !== key || JSON.stringify(manifest.issued) !== JSON.stringify(issued)) throw new Trouble("disagree", "", servers[i]);
  }
  if (new Set(numbers).size < numbers.length) throw new Trouble("disagree", "one answers for another");
  let digest, all, signed;
  try {
    digest = await digestOf(issued.terms);
    all = [digest, frame(...issued.addresses)];
    signed = await isSigned(issuer, unhex(issued.signature), "terms", ...all);
  } catch {
    throw new Trouble("browser"); // before a ticket is spent
  }
  if (!signed) throw new Trouble("impostor", "not the issuer's signature");
  /** @type {Terms} */
  const terms = JSON.parse(issued.terms);
  const { servers: count } = terms.parameters;
  const fine = terms.issuer === issuer && areDifferent(terms.keys, count, (each) => isHex(each, PUBLIC_KEY_BYTES)) && issued.addresses.length === count;
  if (!fine) throw new Trouble("terms", "issuer, keys or addresses");
  for (const [i, { server, instance, software, signature }] of manifests.entries()) {
    if (server < 1 || server > count) throw new Trouble("disagree", "a number too high", servers[i]);
    const own = await isSigned(terms.keys[server - 1], unhex(signature), "manifest", String(server), key, instance, software, issued.signature, ...all);
    if (!own || addressOf(issued.addresses[server - 1]) !== servers[i]) throw new Trouble("impostor", "not its key, or not its address", servers[i]);
  }
  if (!operators.every((each) => numbers.some((n) => terms.keys[n - 1] === each))) throw new Trouble("impostor", "not the operator's key");
  return { digest, terms };
}

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
  const manifests = await everyone(servers.map(async (server) => readManifest(await request(server, MANIFEST_PATH, null, MANIFEST_LIMIT, options), server)));
  const began = performance.now();
  try {
    const { digest, terms } = await agreed(servers, manifests, { issuer, operators });
    const peers = new Map(manifests.map((manifest, i) => [manifest.server, servers[i]]));
    const session = { deployment: new Deployment(terms), peers, digest, key: unhex(manifests[0].key), operators, options, began };
    return { ...session, step: stepOf(session) };
  } catch (error) {
    throw error instanceof Trouble ? error : new Trouble("terms", String(error));
  }
}

/**
 * When a ticket of one's own expires: on a coarse clock, or it would tell the servers what this computer's own clock says.
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
  }
  if (ticket.service !== service) throw new Trouble("ticket_for_another_service");
  if (ticket.expires * 1000 <= Date.now()) throw new Trouble("ticket_expired");
  if (ticket.reveal !== deployment.reveals || ticket.servers.length !== deployment.needed(ticket.liars)
    || ticket.liars > terms.robust || ticket.k > terms.parameters.k) throw new Trouble("ticket_not_offered");
  // A server whose key we were given vouches for nobody but itself: it must get a share.
  const vouched = operators.every((each) => ticket.servers.some((n) => keys[n - 1] === each));
  if (!vouched || !ticket.servers.every((n) => peers.has(n))) throw new Trouble("ticket_for_other_servers");
  return ticket;
}

// --- a question ------------------------------------------------------------------------------------------------------

/**
 * Sealed: behind the tables stands what the applicant would add to the cost, which is nothing.
 * @type {(deployment: Deployment, own: Levels, wishes: Wishes) => bigint[]}
 */
export const secretOf = (deployment, own, wishes) => [...costTables(deployment.tariff, own, wishes).flat(), ...(deployment.sealed ? [0n] : [])];

/** @param {Deployment} deployment @param {number[]} servers @param {bigint[]} secret */
export function shares(deployment, servers, secret, draw = uniform) {
  const { q } = deployment;
  if (!deployment.sealed) return split(secret, servers.map((n) => deployment.alphas[n - 1]), deployment.collusion, q, draw);
  const noise = draw(q, secret.length);
  return [noise, secret.map((value, i) => mod(value - noise[i], q))];
}

/**
 * What the answers reveal, and the places of the servers whose answers fit together.
 * @param {Deployment} deployment
 * @param {number[]} servers
 * @param {number} liars
 * @param {bigint[][]} answers
 */
export function recover(deployment, servers, liars, answers) {
  const alphas = servers.map((n) => deployment.alphas[n - 1]);
  const degree = servers.length - 1 - 2 * liars;
  const kept = honest(answers, alphas, degree, liars, deployment.q);
  if (kept === null) throw new Trouble("too_many_liars");
  const basis = kept.slice(0, degree + 1);
  return { kept, revealed: valueAt(basis.map((n) => answers[n]), basis.map((n) => alphas[n]), 0n, deployment.q) };
}

/**
 * The positions of the k least costs. k passes over all, and no sort: how long it takes must not tell how the costs lie.
 * @param {bigint[]} costs
 * @param {number} k
 */
export function nearest(costs, k) {
  const taken = new Uint8Array(costs.length);
  return Array.from({ length: Math.min(k, costs.length) }, () => {
    let best = -1;
    for (let i = 0; i < costs.length; i++) if (!taken[i] && (best < 0 || costs[i] < costs[best])) best = i;
    taken[best] = 1;
    return best;
  });
}

/**
 * @param {Stage} stage
 * @param {Admission} ticket
 * @param {import("./wire.js").RequestKind} kind
 * @param {number} server
 * @param {number} request
 * @param {number[]} among
 * @param {Bytes} secret
 * @param {Bytes} body
 * @param {number} expected
 * @returns {Message}
 */
function message({ digest, key }, ticket, kind, server, request, among, secret, body, expected) {
  const bytes = encodeRequest({ kind, server, terms: digest, key, ticket: ticket.bytes, request, among, secret, body });
  return { kind, server, request, among, secret, body, bytes, expected };
}

/**
 * The messages that ask, one for each server of the ticket, each with a secret of this question and this server.
 * @param {Stage} session
 * @param {Admission} ticket
 * @param {Levels} own
 * @param {Wishes} wishes
 */
function compiled(session, ticket, own, wishes) {
  const { deployment } = session, sizes = deployment.answers(ticket.servers.length);
  const queries = shares(deployment, ticket.servers, secretOf(deployment, own, wishes));
  return ticket.servers.map((server, i) => {
    const secret = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
    return message(session, ticket, "query", server, 0, ticket.servers, secret, packVector(queries[i], deployment.q), sizes[i]);
  });
}

/**
 * So many of these servers, every set as likely.
 * @param {number[]} servers
 * @param {number} size
 */
function some(servers, size) {
  const left = [...servers];
  while (left.length > size) left.splice(Number(uniform(BigInt(left.length), 1)[0]), 1);
  return left.sort((a, b) => a - b);
}

/**
 * The messages that fetch the records, each record from a random set of honest servers. A server that is left out gets a
 * query too, of noise, and a random set that it is in: by chance, or because it lied, looks the same to it.
 * To each server they carry the secret that its question, `asked`, had: it knows by that who goes on.
 * @param {Stage} session
 * @param {Admission} ticket
 * @param {Message[]} asked
 * @param {Outcome} found
 * @returns {RecordStep[]}
 */
function recordSteps(session, ticket, asked, found) {
  const { collusion, positions, recordBytes } = session.deployment;
  const size = ticket.servers.length - ticket.liars, honestOnes = found.kept.map((place) => ticket.servers[place]);
  const spir = makeSpir(size, collusion, recordBytes, ticket.liars > 0);
  const atRandom = uniform(BigInt(positions), ticket.k).map(Number);
  return (found.plausible ? found.positions : atRandom).map((position, i) => {
    const among = some(honestOnes, size), queries = spir.query(positions, position);
    const messages = ticket.servers.map((server, n) => {
      const place = among.indexOf(server);
      const named = place >= 0 ? among : some([...some(ticket.servers.filter((n) => n !== server), size - 1), server], size);
      const body = place >= 0 ? queries[place] : spir.query(positions, 0)[0];
      return message(session, ticket, "record-query", server, i + 1, named, asked[n].secret, body, spir.part);
    });
    return { messages, package: (parts) => spir.recover(among.map((n) => parts[ticket.servers.indexOf(n)])) };
  });
}

/**
 * The wishes that take longest to compile of all that the page can express: none shuts a level out before it is looked at.
 * @param {Deployment} deployment
 * @returns {Wishes}
 */
function heaviest({ schema, terms }) {
  const weight = terms.parameters.max_weight;
  return new Map(schema.costed.map((f) => [f, { weight, change: f.ordered ? "up" : "free", ...(f.kind === "numeric" ? { low: f.low, high: f.high } : {}) }]));
}

/**
 * The step of time that hides what is computed: twice the longest of three tries with made-up numbers, or more.
 * Of sealed answers nothing is left to put together: they are evaluated as they come in.
 * @param {Omit<Session, "step">} session
 */
function stepOf(session) {
  const { terms, rows, sealed } = session.deployment, tried = Math.min(rows, MOST_REHEARSED);
  const deployment = new Deployment({ ...terms, rows: tried }), stage = { ...session, deployment };
  const servers = Array.from({ length: deployment.needed(terms.robust) }, (_, i) => i + 1);
  const ticket = { servers, liars: terms.robust, k: terms.parameters.k, bytes: new Uint8Array(256) };
  const own = new Map(deployment.schema.costed.map((feature) => [feature, 0])), wishes = heaviest(deployment);
  /** @type {(work: () => void) => number} */
  const timed = (work) => {
    const began = performance.now();
    work();
    return performance.now() - began;
  };
  const tries = Array.from({ length: REHEARSALS }, () => {
    /** @type {Message[]} */
    let asked = [];
    const compiling = timed(() => (asked = compiled(stage, ticket, own, wishes)));
    if (sealed) return compiling;
    const answer = packVector(uniform(deployment.q, deployment.length), deployment.q); // the same from all: it fits together
    const choosing = timed(() => recordSteps(stage, ticket, asked, understood(stage, ticket, servers.map(() => answer))));
    return Math.max(compiling, (choosing * rows) / tried);
  });
  return Math.max(STEP * (1 + Math.floor(rows / ROWS_A_STEP)), 2 * Math.max(...tries));
}

/**
 * Where the answers say the nearest rows stand, evaluated as they come in.
 * @param {Session} session
 * @param {Ticket} ticket
 * @param {Message[]} asked
 * @param {Send} send
 * @param {Progress} progress
 * @returns {Promise<Found>}
 */
async function evaluated({ deployment }, ticket, asked, send, progress) {
  const total = asked[0].expected + asked[1].expected;
  const pipes = asked.map(({ server, among, expected }) =>
    new Pipe(headOf({ kind: "answer", server, ticket: ticket.id, request: 0, among }, expected), expected));
  /** @type {import("./garble.js").Take} */
  const taken = async (place, count) => {
    const bytes = await pipes[place].take(count);
    progress(pipes[0].passed + pipes[1].passed, total);
    return bytes;
  };
  const evaluation = evaluate(taken, deployment.rows, bitsOf(deployment.q), deployment.inside ? deployment.recordBytes : 0);
  evaluation.catch(() => pipes.forEach((each) => each.drain())); // nobody takes any more: read on all the same
  await everyone(pipes.map(async (pipe, i) => {
    try {
      await send(asked[i], pipe);
      if (pipe.passed !== pipe.length || pipe.seen !== pipe.head.length + pipe.length) throw new Trouble("malformed_answer");
    } catch (error) {
      pipes.forEach((each) => each.drain());
      throw error;
    }
  }));
  const began = performance.now();
  const { position, opened: inside } = await evaluation;
  return { kept: [0, 1], positions: [position], plausible: true, costs: null, inside, began };
}

/**
 * The same, put together when all are there.
 * @param {Session} session
 * @param {Ticket} ticket
 * @param {Message[]} asked
 * @param {Send} send
 * @returns {Promise<Found>}
 */
async function opened(session, ticket, asked, send) {
  const bodies = await everyone(asked.map((each) => send(each)));
  const began = performance.now();
  return { ...understood(session, ticket, bodies), began };
}

/** @param {Pick<Session, "deployment" | "peers">} session @param {Admission} ticket @param {Bytes[]} bodies @returns {Outcome} */
function understood({ deployment, peers }, ticket, bodies) {
  const answers = bodies.map((body, i) => {
    try {
      return unpackVector(body, deployment.q, deployment.length);
    } catch {
      throw new Trouble("malformed_answer", "", peers.get(ticket.servers[i]) ?? null);
    }
  });
  const { kept, revealed } = recover(deployment, ticket.servers, ticket.liars, answers);
  const costs = deployment.relative(revealed);
  const lowest = costs.reduce((a, b) => (b < a ? b : a), 0n), highest = costs.reduce((a, b) => (b > a ? b : a), 0n);
  return { kept, positions: nearest(costs, ticket.k), plausible: highest - lowest <= deployment.top, costs, inside: null };
}

/**
 * Send a message, and return the body of its answer, or let that go into a pipe.
 * @param {Session} session
 * @param {Ticket} ticket
 * @param {Message} sent
 * @param {Watch} watch
 * @param {Pipe | null} pipe
 * @returns {Promise<Bytes>}
 */
async function post({ peers, options }, ticket, sent, watch, pipe) {
  const { kind, server, request: number, among, bytes, expected } = sent, address = peers.get(server) ?? "";
  const coming = request(address, kind === "query" ? ANSWER_PATH : RECORD_PATH, bytes, expected + ENVELOPE, options, pipe);
  watch(sent, null, 0);
  const said = await coming;
  watch(sent, pipe?.first ?? null, pipe?.seen ?? said.length);
  if (pipe) return pipe.first;
  let answer;
  try {
    answer = decodeReply(said, kind === "query" ? "answer" : "record-answer");
  } catch {
    throw new Trouble("malformed_answer", "", address);
  }
  const right = answer.server === server && same(answer.ticket, ticket.id) && answer.request === number
    && same(answer.among, among) && answer.body.length === expected;
  if (!right) throw new Trouble("malformed_answer", "", address);
  watch(sent, answer.body, said.length);
  return answer.body;
}

/**
 * Ask. Only the first record is explained. With the `attempt` of a question that broke off, the very same bytes are sent again.
 * @param {Session} session
 * @param {string} ticketText
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Watch} watch sees every message
 * @param {Attempt} attempt
 * @param {Progress} progress bytes that came, of how many
 */
export async function ask(session, ticketText, own, wishes, watch = () => {}, attempt = {}, progress = () => {}) {
  const { deployment, step } = session;
  const ticket = (attempt.ticket ??= await admitted(session, ticketText));
  const asked = (attempt.asked ??= compiled(session, ticket, own, wishes));
  /** @type {Send} */
  const send = (each, pipe = null) => post(session, ticket, each, watch, pipe);
  await settle(session.began, step); // or the time since the manifests tells how long that took
  const found = await (deployment.sealed ? evaluated : opened)(session, ticket, asked, send, progress);
  const steps = deployment.inside ? [] : (attempt.steps ??= recordSteps(session, ticket, asked, found));
  await settle(found.began, step);
  /** @type {Bytes[][]} */
  const parts = [];
  for (const { messages } of steps) parts.push(await everyone(messages.map((each) => send(each))));
  // That was the last message: from here on nothing that happens can be seen by a server.
  return explained(deployment, ticket, own, wishes, found, await unpackage(found.inside ?? steps[0].package(parts[0])));
}

/**
 * What a record tells, if it is signed for this database and costs what the answers promised.
 * @param {Deployment} deployment
 * @param {Ticket} ticket
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Outcome} found
 * @param {Bytes} whole
 * @returns {Promise<Explanation>}
 */
async function explained(deployment, ticket, own, wishes, found, whole) {
  const { terms, schema } = deployment, bytes = whole.slice(0, -SIGNATURE_BYTES);
  const signed = await isSigned(terms.issuer, whole.slice(-SIGNATURE_BYTES), "record", unhex(terms.database), bytes);
  if (!found.plausible || !signed) throw new Trouble("tampered");
  let record;
  try {
    record = schema.readRecord(bytes, terms.record);
  } catch {
    throw new Trouble("tampered");
  }
  const tables = costTables(deployment.tariff, own, wishes);
  const each = schema.costed.map((f, j) => tables[j][levelOf(record.codes, f)]);
  if (found.costs && !deployment.differences) {
    const over = found.costs[found.positions[0]] - each.reduce((a, b) => a + b, 0n);
    if (over < 0n || over >= BigInt(deployment.mask)) throw new Trouble("tampered");
  }
  const liars = ticket.servers.filter((_, place) => !found.kept.includes(place));
  return { ...explain(deployment, own, wishes, record, each), liars };
}

/**
 * @param {Deployment} deployment
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {{ codes: Levels }} record
 * @param {bigint[]} each what each feature costs
 */
function explain(deployment, own, wishes, record, each) {
  const { schema } = deployment;
  const broken = schema.costed.filter((f) => !allowedLevels(f, levelOf(own, f), wishes.get(f) ?? {})[levelOf(record.codes, f)]);
  const total = each.reduce((a, b) => a + b, 0n);
  const changes = schema.costed.flatMap((feature, j) => {
    const before = levelOf(own, feature), after = levelOf(record.codes, feature);
    if (before === after) return [];
    const there = feature.ordered && feature.kind !== "boolean" && Math.max(before, after) <= feature.steps;
    return [{
      feature, before, after, value: feature.value(after), direction: there ? Math.sign(after - before) : 0,
      share: total > 0n ? Number((10000n * each[j]) / total) / 10000 : 0,
    }];
  });
  changes.sort((a, b) => b.share - a.share);
  return { feasible: broken.length === 0, broken, changes, codes: record.codes };
}
