// One run of a question: servers that work on it together, the messages to them, and what they answered.
// `Run` is for servers that do not talk to each other. `linked.js` has the other kind.

import { AHEAD, ROUTES } from "./constants.js";
import { Trouble } from "./network.js";
import { Inbox } from "./party.js";
import { Incoming, SHOWN } from "./replies.js";
import { concat, Malformed, requestHead } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./wire.js").RequestKind} RequestKind
 * @typedef {import("./protocols.js").Seen} Seen
 */

/**
 * @typedef {object} Message
 * @property {RequestKind} kind
 * @property {number} server
 * @property {number} request
 * @property {number} run
 * @property {Bytes} body an attempt has none until it is sent
 * @property {Bytes} bytes the whole message
 */

/** @typedef {{ server: number, request: number, run: number }} Line one request to one server; lines are compared by identity, not by value */
/** @typedef {{ what: "send", line: Line, message: Message }} Sending */
/** @typedef {{ what: "wait", seconds: number }} Waiting a pause before servers that could not answer are asked again */
/** @typedef {{ seat: number, among: number[], body?: Bytes }} Receiver a seat, all seats that get this request (empty: all of the run), and the body */

/**
 * What a run needs of its conversation.
 * @typedef {object} Setting
 * @property {number} number which run of the question this is
 * @property {number[]} servers by number
 * @property {import("./protocols.js").Sizes[]} requests
 * @property {Bytes} ticket its id
 * @property {(server: number, kind: RequestKind, request: number, among: number[], body: Bytes) => import("./wire.js").Request} write makes a message
 * @property {(seat: number) => string | null} address
 * @property {(done: number, all: number) => void} progress
 * @property {() => void} moved called when the conversation may want more of some reply
 */

/** @typedef {{ seat: number, incoming: Incoming, request: import("./wire.js").Request }} Open a request that was sent, and the reply as far as it has arrived */

/** What both kinds of run have: requests that were sent, and how they ended. */
export class Lines {
  /** @param {Setting} setting */
  constructor(setting) {
    this.setting = setting;
    this.servers = setting.servers;
    /** @type {Map<Line, Open>} */
    this.lines = new Map();
    /** @type {Map<number, unknown>} */
    this.errors = new Map(); // by seat
    this.failed = false;
    /** @type {unknown} */
    this.error = null; // why it failed
  }

  /**
   * Return a message to a server. It carries a secret for that server, so nobody else can send it.
   * @param {RequestKind} kind
   * @param {number} number
   * @param {Receiver} to
   * @param {import("./protocols.js").Sizes} sizes
   * @returns {Sending}
   */
  begun(kind, number, { seat, among: seats, body = new Uint8Array() }, { down, streams }) {
    const { number: run, servers, ticket, write } = this.setting, server = servers[seat];
    const among = seats.length ? seats.map((each) => servers[each]) : servers;
    const request = write(server, kind, number, among, body), line = { server, request: number, run };
    const incoming = new Incoming({ kind: ROUTES[kind][1], server, ticket, request: number, among }, down[seat], streams ? SHOWN : down[seat]);
    this.lines.set(line, { seat, incoming, request });
    const bytes = concat(requestHead(request, body.length), body);
    return { what: "send", line, message: { kind, server, request: number, run, body, bytes } };
  }

  /** @param {Line} line */
  open(line) {
    const open = this.lines.get(line);
    if (!open) throw new Error("nothing was sent on this line");
    return open;
  }

  /** Note why the run failed, if a request of it did. */
  refuse() {
    if (!this.errors.size || this.failed) return;
    this.failed = true;
    this.error = this.errors.get(Math.min(...this.errors.keys()));
  }
}

/** A run of servers that do not talk to each other. */
export class Run extends Lines {
  /** @param {Setting} setting @param {import("./party.js").HashingParty<Seen>} party */
  constructor(setting, party) {
    super(setting);
    this.requests = setting.requests;
    this.party = party;
    this.inbox = new Inbox();
    /** @type {Sending[]} */
    this.out = [];
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
   * Return what is to be sent now; nothing if the run has all that it needs, or has failed.
   * @returns {Promise<Sending[]>}
   */
  async todo() {
    await this.play();
    this.refuse();
    return this.failed ? [] : this.out.splice(0);
  }

  /** @param {Line} line @param {Bytes} data */
  heard(line, data) {
    const { seat, incoming } = this.open(line), fresh = incoming.take(data);
    if (!fresh.length || !this.requests[line.request].streams) return;
    this.received += fresh.length;
    if (this.errors.size) return; // after an error, replies are still read to their ends, so that no server notices
    this.inbox.put(seat, line.request, fresh);
    this.play();
  }

  /** @param {Line} line */
  wants(line) {
    const { seat } = this.open(line);
    const isOurs = this.effect?.what === "take" && this.effect.source === seat;
    return this.errors.size > 0 || isOurs || this.inbox.size(seat, line.request) < AHEAD;
  }

  /** @param {Line} line */
  ended(line) {
    const { seat, incoming } = this.open(line), body = incoming.checked(this.setting.address(seat));
    if (!this.requests[line.request].streams) this.inbox.put(seat, line.request, body);
    return body;
  }

  /** @param {Line} line @param {unknown} why */
  broke(line, why) {
    this.fail(this.open(line).seat, why);
  }

  /** Process the last answers, which wait until every connection is closed; return all that was seen. */
  async finish() {
    this.over = true;
    await this.play();
    this.refuse();
    if (this.failed) throw this.error;
    if (!this.seen) throw new Error("the conversation is not over");
    return this.seen;
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
    const { progress, moved, address } = this.setting, all = this.requests[0].down.reduce((a, b) => a + b, 0);
    let seat = 0; // the server whose bytes the party computes with
    try {
      while (!this.seen && !this.errors.size) {
        const { effect } = this;
        let bytes = new Uint8Array();
        if (effect?.what === "send") this.out.push(this.sent(effect));
        else if (effect) {
          moved();
          if (this.isHeldBack(effect) || !this.inbox.has(effect)) break;
          [bytes, seat] = [this.inbox.take(effect), effect.source];
          if (this.requests[effect.request].streams) progress(this.received, all);
        }
        this.effect = null;
        moved();
        const { done, value } = await this.party.next(bytes);
        if (done) this.seen = value;
        else this.effect = value;
      }
    } catch (error) {
      this.fail(seat, error instanceof Malformed ? new Trouble("malformed_answer", error.message, address(seat)) : error);
    }
    this.busy = false; // without an await before it, so that the next call of `play` runs the party again
  }

  /** @param {import("./party.js").Take} take */
  isHeldBack({ request }) {
    return request === this.requests.length - 1 && !this.requests[request].streams && !this.over;
  }

  /** @param {import("./party.js").Send} sending */
  sent({ to: seat, body, request, among }) {
    return this.begun(request ? "record-query" : "query", request, { seat, among, body }, this.requests[request]);
  }

  /** @param {number} seat @param {unknown} why */
  fail(seat, why) {
    this.errors.set(seat, why);
    this.setting.moved();
  }
}
