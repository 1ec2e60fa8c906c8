// The network: requests that are sent again, the same bytes, when a connection breaks; answers whole, or as they come in.

import { AHEAD, LONGEST_PAUSE, MEDIA_TYPE, PATIENCE, PAUSE, RETRIED, SLOWEST, TIMEOUT } from "./constants.js";
import { concat, concatAll, same } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {{ timeout?: number, patience?: number }} Options milliseconds for a server to answer, and over which a request is sent again
 */

const REASON = /^(ticket_[a-z_]+|other_terms|other_key|too_often)$/; // why a server may refuse; any other reason is none that a person could do something about

export class Trouble extends Error {
  /**
   * What went wrong.
   * @param {string} code for the page's words
   * @param {string} detail
   * @param {string | null} server the address at fault, if one is
   */
  constructor(code, detail = "", server = null) {
    super(`${code}: ${detail}`);
    this.code = code;
    this.detail = detail;
    this.server = server;
  }
}

/** An answer that is used as it comes in: the head it must have, then its body, never far ahead of what is taken. */
export class Pipe {
  /** @param {Bytes} head @param {number} length of the body */
  constructor(head, length) {
    this.head = head;
    this.length = length;
    /** @type {Bytes[]} */
    this.parts = []; // that wait to be taken
    this.held = 0; // bytes of those
    this.passed = 0; // bytes of the body that came
    this.seen = 0; // bytes that came over this connection
    this.first = new Uint8Array(); // bytes of the body, to be shown
    this.wanted = 0;
    this.moved = () => {};
    this.drained = false;
  }

  begin() {
    this.seen = 0; // after a broken connection the same bytes come again
  }

  /** @returns {Promise<void>} */
  wait() {
    return new Promise((resolve) => {
      const before = this.moved;
      this.moved = () => {
        before();
        resolve();
      };
    });
  }

  move() {
    const waiting = this.moved;
    this.moved = () => {};
    waiting();
  }

  drain() {
    this.drained = true; // another server failed: read on, so that this one cannot tell
    this.move();
  }

  /** @param {Bytes} data */
  async push(data) {
    const start = this.seen;
    this.seen += data.length;
    const head = this.head.subarray(start, start + data.length);
    if (!same(head, data.subarray(0, head.length))) throw new Trouble("malformed_answer");
    const fresh = data.subarray(head.length + this.passed - Math.max(0, start - this.head.length));
    this.passed += fresh.length;
    if (this.passed > this.length) throw new Trouble("malformed_answer", "too long");
    if (this.first.length < 2048) this.first = concat(this.first, fresh.slice(0, 2048));
    if (!this.drained && fresh.length) {
      this.parts.push(fresh);
      this.held += fresh.length;
      this.move();
      while (!this.drained && this.held >= Math.max(AHEAD, this.wanted)) await this.wait();
    }
  }

  /** @param {number} count */
  async take(count) {
    this.wanted = count;
    this.move();
    while (this.held < count) {
      if (this.drained) throw new Trouble("unreachable");
      await this.wait();
    }
    const whole = this.parts.length === 1 ? this.parts[0] : concatAll(this.parts);
    this.parts = [whole.subarray(count)];
    this.held -= count;
    this.wanted = 0;
    this.move();
    return whole.slice(0, count);
  }
}

/**
 * Read a body no longer than it may be, or into a pipe; null if it is longer.
 * @param {Response} response
 * @param {number} most
 * @param {Pipe | null} into
 */
async function content(response, most, into) {
  /** @type {Bytes[]} */
  const parts = [];
  let length = 0;
  if (!response.body) throw new TypeError("no body");
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return concatAll(parts);
    length += value.length;
    if (length > most) {
      await reader.cancel();
      return null;
    }
    if (into) await into.push(value);
    else parts.push(value);
  }
}

/**
 * Send a request; where the connection breaks send the same bytes again, until patience ends.
 * @param {string} server
 * @param {string} path
 * @param {Bytes | null} body
 * @param {number} most bytes of the answer
 * @param {Options} options
 * @param {Pipe | null} pipe
 */
export async function request(server, path, body, most, { timeout = TIMEOUT, patience = PATIENCE } = {}, pipe = null) {
  const limit = timeout + (1000 * most) / SLOWEST; // a long answer may take long
  let until = performance.now() + patience;
  const end = until + limit; // whatever happens
  for (let pause = PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    const before = pipe?.passed ?? 0;
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), limit);
    pipe?.begin();
    try {
      const response = await fetch(server + path, {
        method: body ? "POST" : "GET", body, signal: stop.signal, credentials: "omit", redirect: "error", cache: "no-store",
        referrerPolicy: "no-referrer", headers: body ? { "content-type": MEDIA_TYPE } : {},
      });
      const said = await content(response, most, response.ok ? pipe : null);
      if (said === null) throw new Trouble("malformed_answer", "too long", server);
      if (response.ok) return said;
      if (!RETRIED.some((status) => status === response.status)) {
        /** @type {unknown} */
        let code;
        try {
          code = JSON.parse(new TextDecoder().decode(said)).code;
        } catch { /* a refusal without a reason */ }
        throw new Trouble(typeof code === "string" && REASON.test(code) ? code : "refused", `HTTP ${response.status}`, server);
      }
    } catch (error) {
      stop.abort();
      if (error instanceof Trouble) throw error.server ? error : new Trouble(error.code, error.detail, server);
      if (pipe && pipe.passed > before) [until, pause] = [performance.now() + patience, PAUSE]; // it was getting on
      // the connection broke: the same bytes again
    } finally {
      clearTimeout(timer);
    }
    if (performance.now() + pause > Math.min(until, end)) throw new Trouble("unreachable", "", server);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/**
 * Wait for all, so that no server can tell that another failed; then raise the first trouble.
 * @template T
 * @param {Promise<T>[]} promises
 * @returns {Promise<T[]>}
 */
export async function everyone(promises) {
  const settled = await Promise.allSettled(promises);
  return settled.map((each) => {
    if (each.status === "rejected") throw each.reason;
    return each.value;
  });
}
