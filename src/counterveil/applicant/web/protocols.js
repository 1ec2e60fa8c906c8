// What the applicant plays: one question to all servers, then the records, as `src/counterveil/schemes` has it in Python.
// Whatever depends on the question is computed before the first message, or between the last answer and the first record query.

import { bitsOf, honest, mod, split, uniform, valueAt } from "./field.js";
import { evaluate } from "./garble.js";
import { Trouble } from "./network.js";
import { nearest } from "./deployment.js";
import { send, take } from "./party.js";
import { bytesOf, makeSpir } from "./spir.js";
import { packVector, unpackVector } from "./wire.js";

/**
 * @typedef {import("./deployment.js").Deployment} Deployment
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {{ elements: import("./field.js").Draw, bytes: (count: number) => Bytes }} Randomness where pads and secrets come from
 * @typedef {Pick<import("./wire.js").Ticket, "servers" | "liars" | "k">} Admission what of a ticket a question is made from
 * @typedef {{ down: number[], streams: boolean }} Sizes bytes of each server's answer; whether it is read as it comes, in a time that says nothing
 * @typedef {{ revealed: bigint[], honest: number[], positions: number[], record: Bytes | null }} Outcome of the question: no positions if the answers contradict each other
 * @typedef {{ revealed: bigint[], positions: number[], records: Bytes[], honest: number[] }} Seen all that the applicant has at the end
 */

/** @typedef {{ among: number[], sent: { among: number[], query: Bytes }[] }} Step of one record: the seats that make it, and what each server gets */
/** @typedef {{ secrets?: Bytes[], queries?: Bytes[], steps?: Step[] }} Made what a question has drawn so far. If it breaks off, the very same is sent again */

/** @type {Randomness} */
export const FRESH = { elements: (q, count) => uniform(q, count), bytes: bytesOf };

/** @param {Deployment} deployment @param {number[]} servers @param {bigint[]} secret */
export function shares(deployment, servers, secret, draw = FRESH.elements) {
  const { q } = deployment;
  if (!deployment.sealed) return split(secret, servers.map((n) => deployment.alphas[n - 1]), deployment.collusion, q, draw);
  const noise = draw(q, secret.length);
  return [noise, secret.map((value, i) => mod(value - noise[i], q))];
}

/**
 * What the answers reveal, and the seats of the servers whose answers fit together.
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
 * How much comes from each server, request by request: the question, then k records.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @returns {Sizes[]}
 */
export function requestsOf(deployment, ticket) {
  const { servers, k } = ticket, question = { down: deployment.answers(servers.length), streams: deployment.sealed };
  if (deployment.inside) return [question];
  const record = { down: servers.map(() => spirOf(deployment, ticket).part), streams: false };
  return [question, ...Array(k).fill(record)];
}

/**
 * Take the answers when all are there, leave out who lied, and choose.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {bigint} apart
 * @returns {import("./party.js").Party<Outcome>}
 */
function* opened(deployment, { servers, liars, k }, apart) {
  const { q, length, top } = deployment, answers = [];
  for (const [seat, count] of deployment.answers(servers.length).entries()) answers.push(unpackVector(yield take(seat, count), q, length));
  const { kept, revealed } = recover(deployment, servers, liars, answers), costs = deployment.relative(revealed);
  const lowest = costs.reduce((a, b) => (b < a ? b : a), 0n), highest = costs.reduce((a, b) => (b > a ? b : a), 0n);
  const chosen = nearest(costs, k, apart);
  return { revealed, honest: kept, positions: highest - lowest <= top ? chosen : [], record: null };
}

/**
 * Evaluate the answers as they come.
 * @param {Deployment} deployment
 * @returns {import("./party.js").HashingParty<Outcome>}
 */
async function* sealed({ rows, q, inside, recordBytes }) {
  const found = yield* evaluate(rows, bitsOf(q), inside ? recordBytes : 0);
  return { revealed: [], honest: [0, 1], positions: [found.position], record: found.opened };
}

/**
 * So many of these seats, every set as likely.
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
 * Prepare the record steps, each to a random set of honest servers. A server that is left out gets a query too, of noise,
 * and a random set that it is in: by chance, or because it lied, looks the same to it.
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
 * Fetch the records, one request each; nothing is computed until all answers are there.
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
 * Play the applicant. What cannot be true is asked on, for records at random.
 * @param {Deployment} deployment
 * @param {Admission} ticket
 * @param {bigint[]} secret
 * @param {Randomness} draw
 * @param {Made} made
 * @param {bigint} apart how much farther each record is to be than the one before
 * @returns {import("./party.js").HashingParty<Seen>}
 */
export async function* applicant(deployment, ticket, secret, draw, made, apart) {
  made.queries ??= shares(deployment, ticket.servers, secret, draw.elements).map((query) => packVector(query, deployment.q));
  for (const [seat, query] of made.queries.entries()) yield send(seat, query);
  const found = deployment.sealed ? yield* sealed(deployment) : yield* opened(deployment, ticket, apart);
  const { revealed, positions, record } = found;
  if (record) return { revealed, positions, records: [record], honest: found.honest };
  const steps = (made.steps ??= recordSteps(deployment, ticket, found, draw));
  return { revealed, positions, records: yield* fetched(deployment, ticket, steps), honest: found.honest };
}
