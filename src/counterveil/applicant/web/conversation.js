// One conversation of an applicant with the servers: it decides every message, and does no input or output.
// A driver carries the messages. It calls `todo` to learn what to send, reports what it `heard`, and then calls `result`.

import { KEY_BYTES, PATIENCE } from "./constants.js";
import { Linked } from "./linked.js";
import { applicant, dealingOf, FRESH, requestsOf } from "./protocols.js";
import { Run } from "./runs.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./protocols.js").Seen} Seen
 * @typedef {import("./runs.js").Line} Line
 * @typedef {import("./runs.js").Message} Message
 * @typedef {import("./runs.js").Sending} Sending
 * @typedef {import("./protocols.js").Admission & Pick<import("./wire.js").Ticket, "id" | "bytes">} Ticket the part of a ticket that messages depend on
 */

/**
 * The deployment and the servers that messages are made for.
 * @typedef {object} Stage
 * @property {import("./deployment.js").Deployment} deployment
 * @property {Map<number, string>} peers addresses, by number
 * @property {Bytes} digest of the terms
 * @property {Bytes} key id of the servers' common key
 */

/** @typedef {Sending | import("./runs.js").Waiting | { what: "pause" } | { what: "hang up" }} Do send a message, wait for some seconds, wait for the next step of the public clock, or hang up */
/** @typedef {(done: number, total: number, isSent: boolean) => void} Progress called with how many bytes have arrived, or were sent, and how many there are */
/** @typedef {{ secrets?: Bytes[], runs?: (import("./protocols.js").Made & { attempts?: import("./linked.js").Attempts })[] }} Made what was drawn for a question so far. If it breaks off, the same bytes are sent again, or its attempts go on */
/** @typedef {{ servers: number[], seen: Seen | null }} Outcome what a run has seen; null if it failed */

/**
 * @typedef {object} Options
 * @property {number} [spread] how much more each record should cost than the one before; 1 is a change across a whole range
 * @property {import("./protocols.js").Randomness} [draw]
 * @property {Made} [made] what was drawn for this question before it broke off
 * @property {number} [patience] milliseconds of waiting for servers that talk to each other and cannot answer now
 * @property {Progress} [progress]
 * @property {() => void} [moved] called when the conversation may want more of some reply
 */

/** One question with one ticket. */
export class Conversation {
  /**
   * @param {Stage} stage
   * @param {Ticket} ticket
   * @param {bigint[]} secret the question
   * @param {Options} options
   */
  constructor(stage, ticket, secret, { spread = 0, draw = FRESH, made = {}, patience = PATIENCE, progress = () => {}, moved = () => {} } = {}) {
    const { deployment, digest: terms, key, peers } = stage, { servers: all, bytes } = ticket;
    const apart = BigInt(Math.ceil(spread * deployment.tariff.unit));
    this.ticket = ticket;
    const secrets = made.secrets ??= all.map(() => draw.bytes(KEY_BYTES)), drawn = made.runs ??= [];
    /** @type {[done: number, total: number][]} */
    const told = [];
    /** @type {(number: number, done: number, total: number) => void} */
    const tell = (number, done, total) => {
      told[number] = [done, total];
      progress(told.reduce((n, [each]) => n + each, 0), total * this.runs.length, deployment.joint);
    };
    this.runs = deployment.runs(all.length, ticket.liars).map((seats, number) => {
      const servers = seats.map((seat) => all[seat]), own = seats.length < all.length ? { servers, liars: 0, k: ticket.k } : ticket;
      const before = drawn[number] ??= {};
      /** @type {import("./runs.js").Setting} */
      const setting = {
        number, servers, moved, requests: requestsOf(deployment, own), ticket: ticket.id,
        write: (server, kind, request, among, body) => ({ kind, server, terms, key, ticket: bytes, request, among, secret: secrets[all.indexOf(server)], body }),
        address: (seat) => peers.get(servers[seat]) ?? null,
        progress: (done, total) => tell(number, done, total),
      };
      if (deployment.joint) return new Linked(setting, dealingOf(deployment, own, secret, draw), before, patience);
      return new Run(setting, applicant(deployment, own, secret, draw, before, apart));
    });
  }

  // --- the driver's side ---------------------------------------------------------------------------------------------

  /**
   * Yield what the driver must do now. Call it again when all of that is done and every reply has ended. The last call
   * says to hang up. If a request failed, its error is thrown here, when all other replies have ended.
   * @returns {AsyncGenerator<Do, void, void>}
   */
  async *todo() {
    /** @type {(Sending | import("./runs.js").Waiting)[]} */
    const all = [];
    for (const run of this.runs) all.push(...await run.todo());
    const failed = this.runs.filter((run) => run.failed);
    if (!this.isExplained(failed.map(({ servers }) => servers))) throw failed[0].error;
    if (!all.length) {
      yield { what: "pause" };
      yield { what: "hang up" };
      yield { what: "pause" }; // so that the connections are closed before the last answers are processed
      return;
    }
    const sent = all.flatMap((each) => (each.what === "send" ? each : []));
    const seconds = Math.max(...all.map((each) => (each.what === "wait" ? each.seconds : 0)));
    // The first record queries are the only messages before which something was computed from answers.
    if (sent.some(({ message: { kind, request } }) => kind === "record-query" && request === 1)) yield { what: "pause" };
    if (seconds) yield { what: "wait", seconds };
    yield* sent;
  }

  /**
   * Say whether as few servers as may lie, or be down, explain these runs that failed.
   * @param {number[][]} failed the servers of each
   */
  isExplained(failed, lying = this.runs.length > 1 ? this.ticket.liars : 0) {
    if (!failed.length) return true;
    /** @type {(n: number) => boolean} */
    const explains = (n) => this.isExplained(failed.filter((servers) => !servers.includes(n)), lying - 1);
    return lying > 0 && failed[0].some(explains);
  }

  /**
   * Return a message with its body, which an attempt gets only now.
   * @param {Sending} sending
   */
  whole({ line, message }) {
    const run = this.runs[line.run];
    return run instanceof Linked ? run.whole(line, message) : Promise.resolve(message);
  }

  /**
   * Note how many bytes of a message were sent.
   * @param {Line} line
   * @param {number} count
   */
  uploaded(line, count) {
    const run = this.runs[line.run];
    if (run instanceof Linked) run.uploaded(line, count);
  }

  /**
   * Take the next bytes of a reply.
   * @param {Line} line
   * @param {Bytes} data
   */
  heard(line, data) {
    this.runs[line.run].heard(line, data);
  }

  /**
   * Say whether the driver should read more of a reply now, or let the server wait.
   * @param {Line} line
   */
  wants(line) {
    return this.runs[line.run].wants(line);
  }

  /**
   * Note that the request was sent, perhaps again, so the reply starts from its first byte.
   * @param {Line} line
   */
  again(line) {
    this.incoming(line).begin();
  }

  /**
   * Return how many bytes of a reply's body have arrived.
   * @param {Line} line
   */
  taken(line) {
    return this.incoming(line).taken;
  }

  /**
   * Return how many bytes a reply's body has in all.
   * @param {Line} line
   */
  expected(line) {
    return this.incoming(line).length;
  }

  /**
   * Note that a reply has ended. Return its body, or only the beginning if it was processed as it arrived.
   * @param {Line} line
   */
  ended(line) {
    return this.runs[line.run].ended(line);
  }

  /**
   * Note that a request failed; `todo` throws the error, or asks again.
   * @param {Line} line
   * @param {unknown} why
   */
  broke(line, why) {
    this.runs[line.run].broke(line, why);
  }

  /** @param {Line} line */
  incoming(line) {
    return this.runs[line.run].open(line).incoming;
  }

  /** Wait until everything is computed that needs no further answer. */
  async play() {
    for (const run of this.runs) if (run instanceof Run) await run.play();
  }

  // --- when the driver has hung up -----------------------------------------------------------------------------------

  /** Return what each run has seen. Call it when the last message was answered. */
  async outcomes() {
    /** @type {Outcome[]} */
    const made = [];
    for (const run of this.runs) made.push({ servers: run.servers, seen: run.failed ? null : await run.finish() });
    return made;
  }

  /** Return everything that the question revealed. */
  async result() {
    const { seen } = (await this.outcomes()).find((each) => each.seen) ?? {};
    if (!seen) throw new Error("the conversation is not over");
    return seen;
  }
}
