// The network: requests that are sent again, the same bytes, when a connection breaks; answers whole, or as they come in.

import { concat, concatAll, same } from "./wire.js";

const REASON = /^(ticket_[a-z_]+|other_terms|other_key|too_often)$/; // why a server may refuse; any other reason is none that a person could do something about
const AHEAD = 1 << 20; // bytes of one answer that wait at most for the other

// What went wrong: `code` is for the page's words, `server` is the address at fault, if one is.
export class Trouble extends Error {
  constructor(code, detail = "", server = null) {
    super(`${code}: ${detail}`);
    Object.assign(this, { code, detail, server });
  }
}

// An answer that is used as it comes in: the head it must have, then its body, never far ahead of what is taken.
export class Pipe {
  constructor(head, length) {
    Object.assign(this, { head, length, parts: [], held: 0, passed: 0, seen: 0, first: new Uint8Array(), wanted: 0, moved: () => {}, drained: false });
  }

  begin() {
    this.seen = 0; // after a broken connection the same bytes come again
  }

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

// Read a body no longer than it may be, or into a pipe.
async function content(response, most, into) {
  const parts = [];
  let length = 0;
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

export async function request(server, path, body, most, { timeout = 60000, patience = 10000 } = {}, pipe = null) {
  let until = performance.now() + patience;
  const end = until + timeout + most / 128; // whatever happens
  for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
    const before = pipe?.passed;
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), timeout + most / 128); // a long answer may take long
    pipe?.begin();
    try {
      const response = await fetch(server + path, {
        method: body ? "POST" : "GET", body, signal: stop.signal, credentials: "omit", redirect: "error", cache: "no-store",
        referrerPolicy: "no-referrer", headers: body ? { "content-type": "application/octet-stream" } : {},
      });
      const said = await content(response, most, response.ok ? pipe : null);
      if (said === null) throw new Trouble("malformed_answer", "too long", server);
      if (response.ok) return said;
      if (![502, 503, 504].includes(response.status)) {
        let code;
        try {
          code = JSON.parse(new TextDecoder().decode(said)).code;
        } catch { /* a refusal without a reason */ }
        throw new Trouble(typeof code === "string" && REASON.test(code) ? code : "refused", `HTTP ${response.status}`, server);
      }
    } catch (error) {
      stop.abort();
      if (error instanceof Trouble) throw error.server ? error : new Trouble(error.code, error.detail, server);
      if (pipe?.passed > before) [until, pause] = [performance.now() + patience, 50]; // it was getting on
      // the connection broke: the same bytes again
    } finally {
      clearTimeout(timer);
    }
    if (performance.now() + pause > Math.min(until, end)) throw new Trouble("unreachable", "", server);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// Wait for all, so that no server can tell that another failed; then raise the first trouble.
export async function everyone(promises) {
  const settled = await Promise.allSettled(promises);
  const failed = settled.find((each) => each.status === "rejected");
  if (failed) throw failed.reason;
  return settled.map((each) => each.value);
}
