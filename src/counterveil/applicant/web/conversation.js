// One conversation of an applicant with the servers: it decides every message, and does no input or output.
// A driver carries the messages. It calls `todo` to learn what to send, reports what it `heard`, and then calls `result`.

import { AHEAD, KEY_BYTES } from "./constants.js";
import { Trouble } from "./network.js";
import { Inbox } from "./party.js";
import { applicant, FRESH, requestsOf } from "./protocols.js";
import { concatAll, decodeReply, encodeRequest, headOf, Malformed, same } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./protocols.js").Seen} Seen
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

/**
 * @typedef {object} Message
 * @property {import("./wire.js").RequestKind} kind
 * @property {number} server
 * @property {number} request
 * @property {Bytes} body
 * @property {Bytes} bytes the whole message
 */

/** @typedef {{ server: number, request: number }} Line one request to one server; lines are compared by identity, not by value */
/** @typedef {{ what: "send", line: Line, message: Message }} Sending */
/** @typedef {Sending | { what: "pause" } | { what: "hang up" }} Do send a message, wait for the next step of the public clock, or hang up */
/** @typedef {(came: number, total: number) => void} Progress */

/**
 * @typedef {object} Options
 * @property {number} [spread] how much more each record should cost than the one before; 1 is a change across a whole range
 * @property {import("./protocols.js").Randomness} [draw]
 * @property {import("./protocols.js").Made} [made] what was drawn for this question before it broke off
 * @property {Progress} [progress] called with how many bytes of the answers have arrived, and how many there are
 * @property {() => void} [moved] called when the conversation may want more of some reply
 */

const SHOWN = 2048; // bytes that are kept, to show them, of a reply that is processed as it arrives

/**
 * A reply that arrives: first the head, which must be exactly the expected one, then the body. When a connection breaks,
 * the same bytes come again from the start. Bytes of the body that were taken before are then skipped.
 */
class Incoming {
  /** @param {Omit<import("./wire.js").Reply, "body">} right @param {number} length bytes of the body @param {number} keep how many of them to keep */
  constructor(right, length, keep) {
    this.right = right;
    this.head = headOf(right, length);
    this.length = length;
    this.keep = keep;
    /** @type {Bytes[]} */
    this.kept = [];
    this.taken = 0; // bytes of the body
    this.seen = 0; // bytes that arrived over this connection
    /** @type {Bytes[] | null} */
    this.other = null; // the beginning of a reply whose head is not the expected one
  }

  begin() {
    this.seen = 0;
    this.other = null;
  }

  /**
   * Take the next bytes; return those of the body that were not taken before.
   * @param {Bytes} data
   */
  take(data) {
    const start = this.seen, head = this.head.subarray(start, start + data.length);
    this.seen += data.length;
    if (this.other || !same(head, data.subarray(0, head.length))) {
      this.other ??= [this.head.subarray(0, start)];
      if (this.seen <= this.head.length + this.keep) this.other.push(data);
      return new Uint8Array();
    }
    const known = this.taken - Math.max(0, start - this.head.length);
    const fresh = data.subarray(head.length + known).subarray(0, this.length - this.taken);
    if (this.taken < this.keep) this.kept.push(fresh.slice(0, this.keep - this.taken));
    this.taken += fresh.length;
    return fresh;
  }

  /**
   * Return what was kept of the body; refuse a reply that is not whole.
   * @param {string | null} server its address
   */
  checked(server) {
    if (this.other) throw new Trouble("malformed_answer", this.complaint(concatAll(this.other)), server);
    const got = this.seen - this.head.length;
    if (got !== this.length) throw new Trouble("malformed_answer", `got ${got} bytes, expected ${this.length}`, server);
    return concatAll(this.kept);
  }

  /** @param {Bytes} said */
  complaint(said) {
    try {
      const { server, request } = decodeReply(said, this.right.kind);
      return `an answer of server ${server} to request ${request}, or of another length`;
    } catch {
      return "no answer";
    }
  }
}

/** @typedef {{ seat: number, incoming: Incoming }} Open a request that was sent, and the reply as far as it has arrived */

/** One question with one ticket. */
export class Conversation {
  /**
   * @param {Stage} stage
   * @param {Ticket} ticket
   * @param {bigint[]} secret the question
   * @param {Options} options
   */
  constructor(stage, ticket, secret, { spread = 0, draw = FRESH, made = {}, progress = () => {}, moved = () => {} } = {}) {
    const { deployment } = stage;
    this.stage = stage;
    this.ticket = ticket;
    this.progress = progress;
    this.moved = moved;
    this.requests = requestsOf(deployment, ticket);
    this.secrets = made.secrets ??= ticket.servers.map(() => draw.bytes(KEY_BYTES));
    this.party = applicant(deployment, ticket, secret, draw, made, BigInt(Math.ceil(spread * deployment.tariff.unit)));
    this.inbox = new Inbox();
    /** @type {Sending[]} */
    this.out = [];
    /** @type {Map<Line, Open>} */
    this.lines = new Map();
    /** @type {Map<number, unknown>} */
    this.errors = new Map(); // by seat
    this.received = 0; // bytes of the answers to the question, if they are processed as they arrive
    this.over = false;
    /** @type {import("./party.js").Effect | null} */
    this.effect = null; // what the party waits for; null while it computes
    /** @type {Seen | null} */
    this.seen = null;
    this.busy = false;
    /** @type {Promise<void>} */
    this.played = this.play();
  }

  // --- the driver's side ---------------------------------------------------------------------------------------------

  /**
   * Yield what the driver must do now. Call it again when all of that is done and every reply has ended. The last call
   * says to hang up. If a request failed, its error is thrown here, when all other replies have ended.
   * @returns {AsyncGenerator<Do, void, void>}
   */
  async *todo() {
    this.refuse();
    await this.play();
    this.refuse();
    const sent = this.out;
    this.out = [];
    if (!sent.length) {
      yield { what: "pause" };
      yield { what: "hang up" };
      this.over = true;
      yield { what: "pause" }; // so that the connections are closed before the last answers are processed
      return;
    }
    if (sent[0].line.request === 1) yield { what: "pause" };
    yield* sent;
  }

  /**
   * Take the next bytes of a reply.
   * @param {Line} line
   * @param {Bytes} data
   */
  heard(line, data) {
    const { seat, incoming } = this.open(line), fresh = incoming.take(data);
    if (!fresh.length || !this.requests[line.request].streams) return;
    this.received += fresh.length;
    if (this.errors.size) return; // after an error, replies are still read to their ends, so that no server notices
    this.inbox.put(seat, line.request, fresh);
    this.play();
  }

  /**
   * Say whether the driver should read more of a reply now, or let the server wait.
   * @param {Line} line
   */
  wants(line) {
    const { seat } = this.open(line);
    const isOurs = this.effect?.what === "take" && this.effect.source === seat;
    return this.errors.size > 0 || isOurs || this.inbox.size(seat, line.request) < AHEAD;
  }

  /**
   * Note that the request was sent, perhaps again, so the reply starts from its first byte.
   * @param {Line} line
   */
  again(line) {
    this.open(line).incoming.begin();
  }

  /**
   * Return how many bytes of a reply's body have arrived.
   * @param {Line} line
   */
  taken(line) {
    return this.open(line).incoming.taken;
  }

  /**
   * Return how many bytes a reply's body has in all.
   * @param {Line} line
   */
  expected(line) {
    return this.open(line).incoming.length;
  }

  /**
   * Note that a reply has ended. Return its body, or only the beginning if it was processed as it arrived.
   * @param {Line} line
   */
  ended(line) {
    const { seat, incoming } = this.open(line), body = incoming.checked(this.address(seat));
    if (!this.requests[line.request].streams) this.inbox.put(seat, line.request, body);
    return body;
  }

  /**
   * Note that a request failed and will not be sent again; `todo` throws the error.
   * @param {Line} line
   * @param {unknown} why
   */
  broke(line, why) {
    this.fail(this.open(line).seat, why);
  }

  // --- the party's side ----------------------------------------------------------------------------------------------

  /**
   * Run the applicant's party until it must wait. It gets the last answer only after hanging up.
   * @returns {Promise<void>}
   */
  play() {
    if (!this.busy) {
      this.busy = true;
      this.played = this.run();
    }
    return this.played;
  }

  async run() {
    const all = this.requests[0].down.reduce((a, b) => a + b, 0);
    let seat = 0; // the server whose bytes the party computes with
    try {
      while (!this.seen && !this.errors.size) {
        const { effect } = this;
        let bytes = new Uint8Array();
        if (effect?.what === "send") this.out.push(this.begun(effect));
        else if (effect) {
          this.moved();
          if (this.isHeldBack(effect) || !this.inbox.has(effect)) break;
          [bytes, seat] = [this.inbox.take(effect), effect.source];
          if (this.requests[effect.request].streams) this.progress(this.received, all);
        }
        this.effect = null;
        this.moved();
        const { done, value } = await this.party.next(bytes);
        if (done) this.seen = value;
        else this.effect = value;
      }
    } catch (error) {
      this.fail(seat, error instanceof Malformed ? new Trouble("malformed_answer", error.message, this.address(seat)) : error);
    }
    this.busy = false; // without an await before it, so that the next call of `play` runs the party again
  }

  /** @param {import("./party.js").Take} take */
  isHeldBack({ request }) {
    return request === this.requests.length - 1 && !this.requests[request].streams && !this.over;
  }

  /**
   * Return the message to a server. It carries a secret for that server, so nobody else can send it.
   * @param {import("./party.js").Send} sending
   * @returns {Sending}
   */
  begun({ to: seat, body, request, among: seats }) {
    const { digest, key } = this.stage, { servers, id, bytes: ticket } = this.ticket;
    const server = servers[seat], among = seats.length ? seats.map((each) => servers[each]) : servers;
    /** @type {[import("./wire.js").RequestKind, import("./wire.js").ReplyKind]} */
    const [kind, answered] = request ? ["record-query", "record-answer"] : ["query", "answer"];
    const { down, streams } = this.requests[request], line = { server, request };
    const bytes = encodeRequest({ kind, server, terms: digest, key, ticket, request, among, secret: this.secrets[seat], body });
    const right = { kind: answered, server, ticket: id, request, among };
    this.lines.set(line, { seat, incoming: new Incoming(right, down[seat], streams ? SHOWN : down[seat]) });
    return { what: "send", line, message: { kind, server, request, body, bytes } };
  }

  /** @param {Line} line */
  open(line) {
    const open = this.lines.get(line);
    if (!open) throw new Error("nothing was sent on this line");
    return open;
  }

  /** @param {number} seat */
  address(seat) {
    return this.stage.peers.get(this.ticket.servers[seat]) ?? null;
  }

  /** @param {number} seat @param {unknown} why */
  fail(seat, why) {
    this.errors.set(seat, why);
    this.moved();
  }

  refuse() {
    if (this.errors.size) throw this.errors.get(Math.min(...this.errors.keys()));
  }

  // --- when the driver has hung up -----------------------------------------------------------------------------------

  /** Return everything that the question revealed. Call it when the last message was answered. */
  async result() {
    this.over = true;
    await this.play();
    this.refuse();
    if (!this.seen) throw new Error("the conversation is not over");
    return this.seen;
  }
}
