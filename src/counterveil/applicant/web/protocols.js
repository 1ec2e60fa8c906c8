// The applicant's party: one question to all servers, then the records. `src/counterveil/schemes` has it in Python.
// What depends on the question is computed before the first message, or between the last answer and the first record query.

import { bitsOf, honest, split, splitSum, uniform, valueAt } from "./field.js";
import { evaluate } from "./garble.js";
import { deal, packages } from "./joint.js";
import { Trouble } from "./network.js";
import { nearest } from "./deployment.js";
import { send, take } from "./party.js";
import { bytesOf, makeSpir } from "./spir.js";
import { packVector, unpackVector } from "./wire.js";

/**
 * @typedef {import("./deployment.js").Deployment} Deployment
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {{ elements: import("./field.js").Draw, bytes: (count: number) => Bytes }} Randomness the source of pads and secrets
 * @typedef {Pick<import("./wire.js").Ticket, "servers" | "liars" | "k">} Admission the part of a ticket that a question depends on
 * @typedef {{ down: number[], streams: boolean }} Sizes bytes of each server's answer; whether it is processed as it arrives, in a time that does not depend on the question
 * @typedef {{ revealed: bigint[], honest: number[], positions: number[], record: Bytes | null }} Outcome what the answers to the question gave; no positions if the answers contradict each other
 * @typedef {{ revealed: bigint[], positions: number[], records: Bytes[], honest: number[] }} Seen everything that the applicant has at the end
 */

/** @typedef {{ among: number[], sent: { among: number[], query: Bytes }[] }} Step how one record is fetched: the seats that give it, and what is sent to each server */
/** @typedef {{ queries?: Bytes[], steps?: Step[] }} Made what was drawn for a run so far. If the question breaks off, the same bytes are sent again */

/** @type {Randomness} */
export const FRESH = { elements: (q, count) => uniform(q, count), bytes: bytesOf };

/** @param {Deployment} deployment @param {number[]} servers @param {bigint[]} secret */
export function shares(deployment, servers, secret, draw = FRESH.elements) {
  const { q } = deployment;
  if (deployment.sealed) return splitSum(secret, q, draw);
  return split(secret, servers.map((n) => deployment.alphas[n - 1]), deployment.collusion, q, draw);
}

/**
 * Return what the answers reveal, and the seats of the servers whose answers agree.
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

/** @param {Deployment} deployment @param {Admission} ticket */
const spirOf = ({ collusion, recordBytes }, { servers, liars }) => makeSpir(servers.length - liars, collusion, recordBytes, liars > 0);

/**
 * Return the sizes of the answers to each request: the question, then k records.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @returns {Sizes[]}
 */
export function requestsOf(deployment, ticket) {
  const { servers, k } = ticket, question = { down: deployment.answers(servers.length, k), streams: deployment.garbled };
  if (!deployment.fetches) return [question];
  const record = { down: servers.map(() => spirOf(deployment, ticket).part), streams: false };
  return [question, ...Array(k).fill(record)];
}

/**
 * Take all answers, leave out those of liars, and choose the rows to fetch.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {bigint} apart
 * @returns {import("./party.js").Party<Outcome>}
 */
function* opened(deployment, { servers, liars, k }, apart) {
  const { q, length, top } = deployment, answers = [];
  for (const [seat, count] of deployment.answers(servers.length, k).entries()) answers.push(unpackVector(yield take(seat, count), q, length));
  const { kept, revealed } = recover(deployment, servers, liars, answers), costs = deployment.relative(revealed);
  const lowest = costs.reduce((a, b) => (b < a ? b : a), 0n), highest = costs.reduce((a, b) => (b > a ? b : a), 0n);
  const chosen = nearest(costs, k, apart);
  return { revealed, honest: kept, positions: highest - lowest <= top ? chosen : [], record: null };
}

/**
 * Evaluate the answers as they arrive.
 * @param {Deployment} deployment
 * @returns {import("./party.js").HashingParty<Outcome>}
 */
async function* sealed({ rows, q, inside, recordBytes }) {
  const found = yield* evaluate(rows, bitsOf(q), inside ? recordBytes : 0);
  return { revealed: [], honest: [0, 1], positions: [found.position], record: found.opened };
}

/**
 * Choose `size` of these seats at random, every set with the same probability.
 * @param {number[]} seats
 * @param {number} size
 * @param {Randomness} draw
 */
function some(seats, size, draw) {
  const left = [...seats];
  while (left.length > size) left.splice(Number(draw.elements(BigInt(left.length), 1)[0]), 1);
  return left;
}

/**
 * Prepare the record steps, each for a random set of honest servers. A server that is left out gets a query of noise, with
 * a random set that includes it. So it cannot tell whether it was left out, nor whether its lie was noticed.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {Outcome} found
 * @param {Randomness} draw
 * @returns {Step[]}
 */
function recordSteps(deployment, ticket, found, draw) {
  const { positions: count } = deployment, spir = spirOf(deployment, ticket), seats = [...ticket.servers.keys()];
  const atRandom = draw.elements(BigInt(count), ticket.k).map(Number);
  return (found.positions.length ? found.positions : atRandom).map((position) => {
    const among = some(found.honest, spir.servers, draw), queries = spir.query(count, position, draw.bytes);
    const sent = seats.map((seat) => {
      const place = among.indexOf(seat);
      if (place >= 0) return { among, query: queries[place] };
      const others = some(seats.filter((other) => other !== seat), spir.servers - 1, draw);
      return { among: [...others, seat].sort((a, b) => a - b), query: spir.query(count, 0, draw.bytes)[0] };
    });
    return { among, sent };
  });
}

/**
 * Fetch the records, one request each. Nothing is computed until all answers have arrived.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {Step[]} steps
 * @returns {import("./party.js").Party<Bytes[]>}
 */
function* fetched(deployment, ticket, steps) {
  const spir = spirOf(deployment, ticket);
  /** @type {Bytes[][]} */
  const answers = steps.map(() => []);
  for (const [i, { sent }] of steps.entries()) {
    for (const [seat, { among, query }] of sent.entries()) yield send(seat, query, i + 1, among);
    for (const seat of sent.keys()) answers[i].push(yield take(seat, spir.part, i + 1));
  }
  return steps.map(({ among }, i) => spir.recover(among.map((seat) => answers[i][seat])));
}

/**
 * Return the applicant's part in attempts of servers that talk to each other.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {bigint[]} secret
 * @param {Randomness} draw
 * @returns {import("./linked.js").Dealing}
 */
export function dealingOf(deployment, { servers, k }, secret, draw) {
  const { q, recordBytes, deals, seeded } = deployment;
  return {
    share: () => {
      const [first, second] = shares(deployment, servers, secret, draw.elements);
      return [packVector(first, q), packVector(second, q)];
    },
    deal: (progress) => (deals ? deal(deployment.batches(k), draw.bytes, seeded, progress) : Promise.resolve(null)),
    dealt: deployment.tapes(k).reduce((a, b) => a + b, 0),
    *read() {
      return { revealed: [], positions: [], records: yield* packages(k, recordBytes), honest: [0, 1] };
    },
  };
}

/**
 * Play the applicant. If the answers cannot be true, it still fetches records, at random positions.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {bigint[]} secret
 * @param {Randomness} draw
 * @param {Made} made
 * @param {bigint} apart how much more each record should cost than the one before
 * @returns {import("./party.js").HashingParty<Seen>}
 */
export async function* applicant(deployment, ticket, secret, draw, made, apart) {
  made.queries ??= shares(deployment, ticket.servers, secret, draw.elements).map((query) => packVector(query, deployment.q));
  for (const [seat, query] of made.queries.entries()) yield send(seat, query);
  const found = deployment.garbled ? yield* sealed(deployment) : yield* opened(deployment, ticket, apart);
  const { revealed, positions, record } = found;
  if (record) return { revealed, positions, records: [record], honest: found.honest };
  const steps = (made.steps ??= recordSteps(deployment, ticket, found, draw));
  return { revealed, positions, records: yield* fetched(deployment, ticket, steps), honest: found.honest };
}
