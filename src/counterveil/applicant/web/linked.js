// A run of two servers that talk to each other: the applicant sends them attempts, and deals their randomness.

import { ATTEMPT_PAUSE, LONGEST_ATTEMPT_PAUSE, MOST_ATTEMPTS, NOT_YET, NOTHING_BEGAN } from "./constants.js";
import { Trouble } from "./network.js";
import { Lines } from "./runs.js";
import { concat, requestHead } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./protocols.js").Seen} Seen
 * @typedef {import("./runs.js").Line} Line
 * @typedef {import("./runs.js").Message} Message
 * @typedef {import("./runs.js").Sending} Sending
 * @typedef {import("./runs.js").Waiting} Waiting
 */

/**
 * How far attempts have come. A question that broke off goes on from here.
 * @typedef {object} Attempts
 * @property {number} attempt
 * @property {boolean} asked whether this attempt was sent
 * @property {Map<number, Bytes>} answers by seat
 * @property {Map<number, string | null>} refusals by seat: how the attempt ended there
 */

/**
 * The applicant's part in an attempt.
 * @typedef {object} Dealing
 * @property {() => [Bytes, Bytes]} share shares the question anew
 * @property {(progress: (done: number, all: number) => Promise<void>) => Promise<[Bytes, Bytes] | null>} deal deals anew; null if a server deals
 * @property {number} dealt bytes of both tapes
 * @property {() => import("./party.js").Party<Seen>} read takes both answers
 */

/** @type {() => Attempts} */
const unasked = () => ({ attempt: 0, asked: false, answers: new Map(), refusals: new Map() });

const DEALING = 0.1; // the part of the progress that dealing is; the rest is sending
const PAINTED = 50; // milliseconds after which dealing lets the page paint
const OVER = "attempt_over";
const SEATS = [0, 1];

/** @type {(code: string | null | undefined, codes: readonly (string | null)[]) => boolean} */
const isAmong = (code, codes) => codes.some((each) => each === code);

/**
 * A run of two servers that talk to each other: attempts, until one of them brings an answer. An attempt that broke off is
 * never repeated: the next one has fresh shares and fresh randomness. Before that, both servers must say that the attempt
 * before gave nothing and never will. If it did give something, they say so too.
 */
export class Linked extends Lines {
  /**
   * @param {import("./runs.js").Setting} setting
   * @param {Dealing} dealing
   * @param {{ attempts?: Attempts }} made
   * @param {number} patience milliseconds of waiting for servers that cannot answer now
   */
  constructor(setting, dealing, made, patience) {
    super(setting);
    this.dealing = dealing;
    this.state = made.attempts ??= unasked();
    this.patience = patience;
    this.waited = 0;
    this.pause = ATTEMPT_PAUSE;
    /** @type {Trouble | null} */
    this.last = null;
    this.sent = [0, 0];
    /** @type {[Bytes, Bytes] | null} */
    this.queries = this.state.asked ? null : dealing.share();
    /** @type {Promise<[Bytes, Bytes] | null> | null} */
    this.tapes = null;
  }

  // --- the driver's side ---------------------------------------------------------------------------------------------

  /**
   * Return the next attempt, or what finds out how the last one ended.
   * @returns {Promise<(Waiting | Sending)[]>}
   */
  todo() {
    this.refuse();
    return Promise.resolve(this.failed ? [] : this.steps());
  }

  /** @returns {(Waiting | Sending)[]} */
  steps() {
    const { state } = this, { answers, refusals, attempt } = state;
    if (!state.asked) return this.attempted();
    const missing = SEATS.filter((seat) => !answers.has(seat));
    if (!missing.length) return [];
    /** @type {(codes: readonly string[]) => boolean} */
    const bothSaid = (codes) => missing.length === 2 && missing.every((seat) => isAmong(refusals.get(seat), codes));
    if (bothSaid(NOTHING_BEGAN)) return this.again(attempt);
    if (bothSaid([OVER])) return this.again(attempt + 1);
    const waiting = this.wait();
    const asked = missing.filter((seat) => refusals.get(seat) !== OVER);
    return this.failed ? [] : [...waiting, ...asked.map((seat) => this.begun("collect", attempt, { seat, among: [] }, this.setting.requests[0]))];
  }

  attempted() {
    this.state.asked = true;
    return SEATS.map((seat) => this.begun("attempt", this.state.attempt, { seat, among: [] }, this.setting.requests[0]));
  }

  /**
   * Share the question anew, and send it under this number.
   * @param {number} attempt
   * @returns {(Waiting | Sending)[]}
   */
  again(attempt) {
    const waiting = this.wait();
    if (attempt >= MOST_ATTEMPTS && !this.failed) this.stop(new Trouble("broke_off"));
    if (this.failed) return [];
    if (attempt > this.state.attempt) [this.waited, this.pause] = [0, ATTEMPT_PAUSE]; // the servers moved, so patience starts again
    Object.assign(this.state, unasked(), { attempt });
    this.sent = [0, 0];
    this.queries = this.dealing.share();
    this.tapes = null;
    return [...waiting, ...this.attempted()];
  }

  /** @returns {Waiting[]} */
  wait() {
    const { pause } = this;
    this.waited += pause;
    if (this.waited > this.patience) {
      this.stop(this.givenUp());
      return [];
    }
    this.pause = Math.min(2 * pause, LONGEST_ATTEMPT_PAUSE);
    return [{ what: "wait", seconds: pause / 1000 }];
  }

  /** Return what to tell the person. Only if no attempt ever began is the ticket still good for another question. */
  givenUp() {
    const { last, state } = this, codes = SEATS.map((seat) => state.refusals.get(seat));
    if (last?.code === "malformed_answer") return last;
    const began = state.attempt > 0 || !codes.every((code) => isAmong(code, NOTHING_BEGAN));
    return new Trouble(!began && codes.includes("peer_unreachable") ? "peer_unreachable" : "unreachable", last?.detail, last?.server);
  }

  /** @param {Trouble} why */
  stop(why) {
    this.failed = true;
    this.error = why;
  }

  /**
   * Return an attempt with its body: the query, and the tape if the applicant deals. Both servers' tapes are dealt at the
   * first call.
   * @param {Line} line
   * @param {Message} message
   * @returns {Promise<Message>}
   */
  async whole(line, message) {
    const { seat, request } = this.open(line), { queries, dealing } = this;
    if (message.kind !== "attempt" || !queries) return message;
    const tapes = await (this.tapes ??= dealing.deal(this.dealt()));
    const body = [queries[seat], ...(tapes ? [tapes[seat]] : [])], length = body.reduce((n, part) => n + part.length, 0);
    const bytes = concat(requestHead(request, length), ...body);
    return { ...message, bytes, body: bytes.subarray(bytes.length - length) };
  }

  /** Return a function that reports how much was dealt, and now and then waits until the page has painted that. */
  dealt() {
    const { setting, dealing } = this;
    let painted = performance.now();
    /** @type {(done: number, all: number) => Promise<void>} */
    return async (done, all) => {
      if (performance.now() - painted < PAINTED && done < all) return;
      setting.progress((DEALING * dealing.dealt * done) / all, dealing.dealt);
      await new Promise((resolve) => setTimeout(resolve));
      painted = performance.now();
    };
  }

  /**
   * Note how many bytes of an attempt were sent.
   * @param {Line} line
   * @param {number} count
   */
  uploaded(line, count) {
    const { setting, dealing } = this;
    this.sent[this.open(line).seat] = count;
    const sent = Math.min(dealing.dealt, this.sent[0] + this.sent[1]);
    setting.progress(DEALING * dealing.dealt + (1 - DEALING) * sent, dealing.dealt);
  }

  /** @param {Line} line @param {Bytes} data */
  heard(line, data) {
    this.open(line).incoming.take(data);
  }

  wants() {
    return true; // replies are short
  }

  /** @param {Line} line */
  ended(line) {
    const { seat, incoming } = this.open(line), body = incoming.checked(this.setting.address(seat));
    this.state.answers.set(seat, body);
    return body;
  }

  /**
   * Note how a request failed; some failures only mean that the servers must be asked again.
   * @param {Line} line
   * @param {unknown} why
   */
  broke(line, why) {
    const { seat, request } = this.open(line);
    if (why instanceof Trouble && isAmong(why.reason, [...NOTHING_BEGAN, ...NOT_YET, OVER])) {
      // A server that is too busy to say how an attempt ended has not said that it never began.
      const isUnclear = request.kind === "collect" && isAmong(why.reason, NOTHING_BEGAN);
      this.state.refusals.set(seat, isUnclear ? "not_ready" : why.reason);
      this.last = why;
    } else this.errors.set(seat, why);
  }

  /** Hand both answers to the applicant's party; return all that was seen. */
  finish() {
    const party = this.dealing.read();
    let step = party.next();
    while (!step.done) {
      const answer = step.value.what === "take" ? this.state.answers.get(step.value.source) : undefined;
      if (!answer) throw new Error("the conversation is not over");
      step = party.next(answer);
    }
    return Promise.resolve(step.value);
  }
}
