// One conversation of an applicant with the servers: it decides every message, and does no input or output.
// A driver carries the messages. It asks what is `todo`, tells what it `heard`, and gets the `result` when all is over.

import { AHEAD, KEY_BYTES } from "./constants.js";
import { Trouble } from "./network.js";
import { Inbox } from "./party.js";
import { applicant, FRESH, requestsOf } from "./protocols.js";
import { concatAll, decodeReply, encodeRequest, headOf, Malformed, same } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./protocols.js").Seen} Seen
 * @typedef {import("./protocols.js").Admission & Pick<import("./wire.js").Ticket, "id" | "bytes">} Ticket what of a ticket messages are made from
 */

/**
 * What messages are made for.
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
 * @property {Bytes} bytes the whole
 */

/** @typedef {{ server: number, request: number }} Line one request to one server; the very object stands for it */
/** @typedef {{ what: "send", line: Line, message: Message }} Sending */
/** @typedef {Sending | { what: "pause" } | { what: "hang up" }} Do send a message, wait for the next step of the public clock, or hang up */
/** @typedef {(came: number, total: number) => void} Progress */

/**
 * @typedef {object} Options
 * @property {number} [spread] how much farther each record is to be than the one before, in whole ranges
 * @property {import("./protocols.js").Randomness} [draw]
 * @property {import("./protocols.js").Made} [made] what was drawn for this question before it broke off
 * @property {Progress} [progress] bytes that came, of how many
 * @property {() => void} [moved] called when more of some reply may be wanted
 */

const SHOWN = 2048; // bytes that are kept of a reply that is used as it comes

/**
 * A reply as it comes in: the head that it must have, then its body. Every byte is hostile until it was checked here.
 * A connection may break, and the same bytes come again: what was taken once is not taken again.
 */
class Incoming {
  /** @param {Omit<import("./wire.js").Reply, "body">} right @param {number} length of the body @param {number} keep bytes of it */
  constructor(right, length, keep) {
    this.right = right;
    this.head = headOf(right, length);
    this.length = length;
    this.keep = keep;
    /** @type {Bytes[]} */
    this.kept = [];
    this.taken = 0; // bytes of the body
    this.seen = 0; // bytes that came over this connection
    /** @type {Bytes[] | null} */
    this.other = null; // the beginning of a reply with another head
  }

  begin() {
    this.seen = 0;
    this.other = null;
  }

  /**
   * Take the next bytes; return those of the body that were not there before.
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
   * What was kept of the body, if the reply is whole.
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

/** @typedef {{ seat: number, incoming: Incoming }} Open a request on its way */

/** One question under one ticket. */
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
    this.received = 0; // bytes of the answers to the question, where they are used as they come
    this.over = false;
    /** @type {import("./party.js").Effect | null} */
    this.effect = null; // what the party waits for; none while it computes
    /** @type {Seen | null} */
    this.seen = null;
    this.busy = false;
    /** @type {Promise<void>} */
    this.played = this.play();
  }

  // --- the driver's side ---------------------------------------------------------------------------------------------

  /**
   * Say what to do now. When all of it is done, and every answer has come, ask again, until it says to hang up.
   * If a request failed, that is thrown here, after all others have come to their end.
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
      yield { what: "pause" }; // until the ends of the connections are on their way
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
    if (this.errors.size) return; // all replies are read to their ends, so that no server can tell
    this.inbox.put(seat, line.request, fresh);
    this.play();
  }

  /**
   * Whether more of a reply is of use now; if not, the driver lets the server wait.
   * @param {Line} line
   */
  wants(line) {
    const { seat } = this.open(line);
    const isOurs = this.effect?.what === "take" && this.effect.source === seat;
    return this.errors.size > 0 || isOurs || this.inbox.size(seat, line.request) < AHEAD;
  }

  /**
   * Be told that a reply starts from its first byte: the same request was sent, perhaps once more.
   * @param {Line} line
   */
  again(line) {
    this.open(line).incoming.begin();
  }

  /**
   * How many bytes of the body of a reply are here.
   * @param {Line} line
   */
  taken(line) {
    return this.open(line).incoming.taken;
  }

  /**
   * How many bytes the body of a reply has.
   * @param {Line} line
   */
  expected(line) {
    return this.open(line).incoming.length;
  }

  /**
   * Be told that a reply has come to its end. Returns its body, or the beginning of one that was used as it came.
   * @param {Line} line
   */
  ended(line) {
    const { seat, incoming } = this.open(line), body = incoming.checked(this.address(seat));
    if (!this.requests[line.request].streams) this.inbox.put(seat, line.request, body);
    return body;
  }

  /**
   * Be told that a request failed, for good.
   * @param {Line} line
   * @param {unknown} why
   */
  broke(line, why) {
    this.fail(this.open(line).seat, why);
  }

  // --- the party's side ----------------------------------------------------------------------------------------------

  /**
   * Play the applicant as far as it goes without waiting. What comes last is looked at when all is over.
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
    let seat = 0; // whose bytes the party computes with
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
    this.busy = false; // at once: whoever calls `play` from now on must play
  }

  /** @param {import("./party.js").Take} take */
  isHeldBack({ request }) {
    return request === this.requests.length - 1 && !this.requests[request].streams && !this.over;
  }

  /**
   * The message to a server, with that server's secret, so that no other could send it.
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

  /** All that the question gave. It is to be called when the last message was answered. */
  async result() {
    this.over = true;
    await this.play();
    this.refuse();
    if (!this.seen) throw new Error("the conversation is not over");
    return this.seen;
  }
}
