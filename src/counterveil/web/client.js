// The applicant's side, in the browser: asks all servers at once, trusts none of them, and tells them nothing.

import { bitsOf, honest, smallestPrimeAbove, split, uniform, valueAt, mod } from "./field.js";
import { answerBytes, evaluate, height } from "./garble.js";
import { everyone, Pipe, request, Trouble } from "./network.js";
import { costTables, allowedLevels, Tariff } from "./preferences.js";
import { Schema } from "./schema.js";
import { makeSpir } from "./spir.js";
import { concat, decodeMessage, decodeTicket, encodeMessage, frame, headOf, makeTicket, packedBytes, packVector, same, unhex, unpackVector } from "./wire.js";

const MANIFEST = 4 << 20, ENVELOPE = 1024; // bytes
const STEP = 20; // milliseconds: what is computed here ends on a multiple of that, so that no server can time it

// One deployment, as its servers' manifests describe it.
export class Deployment {
  constructor(terms) {
    const { parameters } = terms;
    [this.form, this.reveal] = parameters.scheme.split("/");
    if (terms.version !== "counterveil/1") throw new Trouble("terms", `version ${terms.version}`);
    if (this.form !== "table") throw new Trouble("form", this.form);
    const { servers, collusion, k, max_weight: maxWeight, d_min: dMin } = parameters;
    const whole = [servers, collusion, k, maxWeight, dMin, terms.rows].every((v) => Number.isSafeInteger(v) && v >= 1);
    const masked = this.reveal.startsWith("masked");
    this.inside = this.reveal === "sealed_record"; // the answer brings the record
    this.sealed = this.reveal === "sealed" || this.inside;
    const known = this.sealed || ["distances", "differences", "masked", "masked_differences"].includes(this.reveal);
    if (this.sealed && (servers !== 2 || collusion !== 1 || k !== 1 || terms.robust !== 0)) throw new Trouble("terms", "sealed");
    if (!whole || !known || servers <= collusion || servers > 64 || terms.rows >= 2 ** 28 || (masked ? k > 1 && dMin > 1 : dMin !== 1))
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
    if (bound >= 1n << 61n) throw new Trouble("terms", "costs beyond any field"); // so that a random word holds an element
    const smallest = this.sealed ? 1n << BigInt(bound.toString(2).length) : smallestPrimeAbove(bound > BigInt(servers) ? bound : BigInt(servers));
    if (this.q !== smallest) throw new Trouble("terms", `q is ${this.q}, and should be ${smallest}`);
    const points = new Set(this.alphas.map((alpha) => (this.sealed ? alpha : mod(alpha, this.q))));
    if (this.alphas.length !== servers || points.size !== this.alphas.length || points.has(0n))
      throw new Trouble("terms", "alphas");
    this.rows = terms.rows;
    this.length = this.differences ? this.rows - 1 : this.rows;
    this.positions = this.sealed ? 2 ** height(this.rows) : this.rows;
    this.recordBytes = this.schema.recordBytes(terms.record) + 64;
  }

  needed(liars = 0) {
    return this.collusion + 1 + 2 * liars;
  }

  // The costs of all rows, up to one shift where only differences are revealed.
  relative(revealed) {
    if (!this.differences) return revealed;
    const costs = [0n];
    for (const r of revealed) costs.push(costs.at(-1) - (r > this.q / 2n ? r - this.q : r));
    return costs;
  }
}

async function settle(began, rows) {
  const step = STEP * (1 + Math.floor(rows / 20000));
  const until = began + step * Math.ceil((performance.now() - began + 1) / step);
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, Math.floor(until - performance.now()) - 1)));
  while (performance.now() < until); // timers count whole milliseconds
}

// Fetch all manifests and refuse servers that do not agree, before a byte of a question is sent.
export async function connect(urls, options) {
  const servers = urls.map((url) => url.trim().replace(/\/+$/, "")).filter(Boolean);
  const fine = servers.every((server) => /^https?:\/\/[^/]/.test(server));
  if (!fine || new Set(servers).size < Math.max(2, servers.length)) throw new Trouble("addresses");
  const manifests = await everyone(servers.map(async (server) => {
    const said = await request(server, "/v1/manifest", null, MANIFEST, options);
    try {
      const manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(said));
      if (!/^[0-9a-f]{64}$/.test(manifest.digest) || !Number.isInteger(manifest.server)) throw new Error();
      return manifest;
    } catch {
      throw new Trouble("malformed_answer", "manifest", server);
    }
  }));
  const [first] = manifests;
  for (const [i, manifest] of manifests.entries()) {
    const agree = JSON.stringify(manifest.terms) === JSON.stringify(first.terms)
      && manifest.digest === first.digest && manifest.key === first.key;
    if (!agree) throw new Trouble("disagree", "", servers[i]);
  }
  if (new Set(manifests.map((m) => m.server)).size < manifests.length) throw new Trouble("disagree", "one answers for another");
  let deployment;
  try {
    deployment = new Deployment(first.terms);
  } catch (error) {
    throw error instanceof Trouble ? error : new Trouble("terms", String(error));
  }
  if (manifests.some((m) => m.server < 1 || m.server > first.terms.parameters.servers)) throw new Trouble("disagree", "a number too high");
  let signer;
  try {
    signer = await crypto.subtle.importKey("raw", unhex(first.terms.signer), "Ed25519", false, ["verify"]);
  } catch {
    throw new Trouble("browser"); // before a ticket is spent
  }
  const peers = new Map(manifests.map((manifest, i) => [manifest.server, servers[i]]));
  return { deployment, peers, signer, digest: unhex(first.digest), options };
}

function admitted(session, text) {
  const { deployment, peers, digest } = session;
  const { terms } = deployment;
  let ticket;
  if (terms.tickets === "open") {
    const servers = [...peers.keys()].sort((a, b) => a - b).slice(0, deployment.needed());
    ticket = makeTicket(digest, servers, Math.floor(Date.now() / 1000) + Math.floor(terms.window / 2), terms.parameters.k);
  } else {
    try {
      ticket = decodeTicket(text);
    } catch {
      throw new Trouble(text.trim() ? "ticket_forged" : "ticket_missing");
    }
  }
  if (!same(ticket.digest, digest)) throw new Trouble("ticket_for_another_database");
  if (ticket.expires * 1000 <= Date.now()) throw new Trouble("ticket_expired");
  if (ticket.servers.length !== deployment.needed(ticket.liars) || ticket.liars > terms.robust || ticket.k > terms.parameters.k)
    throw new Trouble("ticket_not_offered");
  if (!ticket.servers.every((n) => peers.has(n))) throw new Trouble("ticket_for_other_servers");
  return ticket;
}

// Sealed: behind the tables stands what the applicant would add to the cost, which is nothing.
export const secretOf = (deployment, own, wishes) => [...costTables(deployment.tariff, own, wishes).flat(), ...(deployment.sealed ? [0n] : [])];

export function shares(deployment, servers, secret, draw = uniform) {
  const { q } = deployment;
  if (!deployment.sealed) return split(secret, servers.map((n) => deployment.alphas[n - 1]), deployment.collusion, q, draw);
  const noise = draw(q, secret.length);
  return [noise, secret.map((value, i) => mod(value - noise[i], q))];
}

// What the answers reveal, and the places of the servers whose answers fit together.
export function recover(deployment, servers, liars, answers) {
  const alphas = servers.map((n) => deployment.alphas[n - 1]);
  const degree = servers.length - 1 - 2 * liars;
  const kept = honest(answers, alphas, degree, liars, deployment.q);
  if (kept === null) throw new Trouble("too_many_liars");
  const basis = kept.slice(0, degree + 1);
  return { kept, revealed: valueAt(basis.map((n) => answers[n]), basis.map((n) => alphas[n]), 0n, deployment.q) };
}

export function nearest(costs) {
  let best = 0;
  for (let i = 1; i < costs.length; i++) if (costs[i] < costs[best]) best = i;
  return best;
}

const isSigned = ({ signer, deployment: { terms } }, record, signature) =>
  crypto.subtle.verify("Ed25519", signer, signature, frame("counterveil/1", "record", unhex(terms.database), record));

// Where the answers say the nearest rows stand: evaluated as they come in, or put together when all are there.
async function evaluated(deployment, ticket, queries, send, progress) {
  const record = deployment.inside ? deployment.recordBytes : 0, bits = bitsOf(deployment.q);
  const sizes = answerBytes(deployment.rows, bits, record), total = sizes[0] + sizes[1];
  const pipes = ticket.servers.map((server, i) =>
    new Pipe(headOf({ kind: "answer", server, ticket: ticket.id, request: 0, among: ticket.servers }, sizes[i]), sizes[i]));
  const taken = async (place, count) => {
    const bytes = await pipes[place].take(count);
    progress(pipes[0].passed + pipes[1].passed, total);
    return bytes;
  };
  const evaluation = evaluate(taken, deployment.rows, bits, record);
  evaluation.catch(() => pipes.forEach((each) => each.drain())); // nobody takes any more: read on all the same
  await everyone(pipes.map(async (pipe, i) => {
    try {
      await send(i, pipe);
      if (pipe.passed !== pipe.length || pipe.seen !== pipe.head.length + pipe.length) throw new Trouble("malformed_answer");
    } catch (error) {
      pipes.forEach((each) => each.drain());
      throw error;
    }
  }));
  const began = performance.now();
  const { position, opened } = await evaluation;
  return { kept: [0, 1], positions: [position], plausible: true, costs: null, opened, began };
}

async function opened(deployment, ticket, queries, send) {
  const { q, length } = deployment;
  const bodies = await everyone(queries.map((_, i) => send(i, null)));
  const began = performance.now();
  const answers = bodies.map(({ body, server }) => {
    try {
      return unpackVector(body, q, length);
    } catch {
      throw new Trouble("malformed_answer", "", server);
    }
  });
  const { kept, revealed } = recover(deployment, ticket.servers, ticket.liars, answers);
  const costs = deployment.relative(revealed);
  const lowest = costs.reduce((a, b) => (b < a ? b : a), 0n), highest = costs.reduce((a, b) => (b > a ? b : a), 0n);
  const plausible = highest - lowest <= deployment.top;
  const order = costs.map((_, i) => i);
  if (ticket.k > 1) order.sort((a, b) => (costs[a] < costs[b] ? -1 : costs[a] > costs[b] ? 1 : a - b));
  else order[0] = nearest(costs);
  return { kept, positions: order.slice(0, ticket.k), plausible, costs, opened: null, began };
}

// Ask. `own` maps features to levels, `wishes` to preferences; `watch` sees every message, `progress` bytes that came of how many.
// Only the first record is explained. With the `attempt` of a question that broke off, the very same bytes are sent again.
export async function ask(session, ticketText, own, wishes, watch = () => {}, attempt = {}, progress = () => {}) {
  const { deployment, peers, options } = session;
  const { terms, schema, q, rows, recordBytes } = deployment;
  const secret = secretOf(deployment, own, wishes);
  const ticket = (attempt.ticket ??= admitted(session, ticketText));
  attempt.bytes ??= new Map();
  const post = async (server, path, kind, request_, among, body, expected, pipe = null) => {
    const which = `${server}/${request_}`;
    const bytes = attempt.bytes.get(which) ?? encodeMessage({ kind, server, ticket: ticket.bytes, request: request_, among, body });
    attempt.bytes.set(which, bytes);
    watch(which, server, peers.get(server), bytes, null);
    const said = await request(peers.get(server), path, bytes, expected + ENVELOPE, options, pipe);
    if (pipe) {
      watch(which, server, peers.get(server), bytes, concat(pipe.head, pipe.first), pipe.seen);
      return null;
    }
    watch(which, server, peers.get(server), bytes, said, said.length);
    let answer;
    try {
      answer = decodeMessage(said, kind === "query" ? "answer" : "record-answer");
    } catch {
      throw new Trouble("malformed_answer", "", peers.get(server));
    }
    const right = answer.server === server && same(answer.ticket, ticket.id) && answer.request === request_
      && same(answer.among, among) && answer.body.length === expected;
    if (!right) throw new Trouble("malformed_answer", "", peers.get(server));
    return answer.body;
  };

  const queries = shares(deployment, ticket.servers, secret);
  const size = packedBytes(bitsOf(q), deployment.length);
  const send = async (i, pipe) => {
    const server = ticket.servers[i];
    const body = await post(server, "/v1/answer", "query", 0, ticket.servers, packVector(queries[i], q), pipe?.length ?? size, pipe);
    return { body, server: peers.get(server) };
  };
  const found = await (deployment.sealed ? evaluated : opened)(deployment, ticket, queries, send, progress);
  const { kept, plausible, costs } = found;
  const positions = plausible ? found.positions : uniform(BigInt(deployment.positions), ticket.k).map(Number);
  await settle(found.began, rows);

  const honestOnes = kept.map((place) => ticket.servers[place]);
  const among = honestOnes.slice(0, ticket.servers.length - ticket.liars);
  const spir = makeSpir(among.length, deployment.collusion, recordBytes, ticket.liars > 0);
  const records = found.opened ? [found.opened] : [];
  for (const [i, position] of deployment.inside ? [] : positions.entries()) {
    const wanted = spir.query(deployment.positions, position);
    const parts = await everyone(ticket.servers.map((n) => {
      const place = among.indexOf(n);
      if (place >= 0) return post(n, "/v1/record", "record-query", i + 1, among, wanted[place], spir.part);
      const others = [...among.slice(1), n].sort((a, b) => a - b); // left out: noise, so that all get as many requests
      return post(n, "/v1/record", "record-query", i + 1, others, spir.query(deployment.positions, 0)[0], spir.part);
    }));
    records.push(await spir.recover(among.map((n) => parts[ticket.servers.indexOf(n)])));
  }

  const began = performance.now();
  try {
    if (!plausible) throw new Trouble("tampered");
    const [whole] = records;
    if (!(await isSigned(session, whole.slice(0, -64), whole.slice(-64)))) throw new Trouble("tampered");
    let record;
    try {
      record = schema.readRecord(whole.slice(0, -64), terms.record);
    } catch {
      throw new Trouble("tampered");
    }
    const tables = costTables(deployment.tariff, own, wishes);
    const each = schema.costed.map((f, j) => tables[j][record.codes.get(f)]);
    if (costs && !deployment.differences) {
      const over = costs[positions[0]] - each.reduce((a, b) => a + b, 0n);
      if (over < 0n || over >= BigInt(deployment.mask)) throw new Trouble("tampered");
    }
    const liars = ticket.servers.filter((n) => !honestOnes.includes(n));
    return { ...explain(deployment, own, wishes, record, each), liars };
  } finally {
    await settle(began, rows); // or a server could tell from what comes next whether the check passed
  }
}

function explain(deployment, own, wishes, record, each) {
  const { schema } = deployment;
  const broken = schema.costed.filter((f) => !allowedLevels(f, own.get(f), wishes.get(f) ?? {})[record.codes.get(f)]);
  const total = each.reduce((a, b) => a + b, 0n);
  const changes = schema.costed.flatMap((feature, j) => {
    const before = own.get(feature), after = record.codes.get(feature);
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
