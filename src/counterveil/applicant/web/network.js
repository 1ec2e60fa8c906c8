// Send requests, and send the same bytes again when a connection breaks. Read answers as a whole, or as they arrive.
// Long bodies report how much of them was sent.

import { LONGEST_PAUSE, MEDIA_TYPE, OTHER_OFFER, OTHERS, PATIENCE, PAUSE, RETRIED, SLOWEST, TIMEOUT } from "./constants.js";
import { concatAll } from "./wire.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {(count: number) => void} Sent called with how many bytes of a long body were sent; it starts again if the body is sent again
 * @typedef {{ timeout?: number, patience?: number, sent?: Sent }} Options milliseconds for a server to answer, and milliseconds for which a request is sent again
 * @typedef {{ begin: () => void, take: (data: Bytes) => Promise<void>, taken: () => number }} Into takes an answer as it arrives; `begin` says that it starts from its first byte
 */

const LONG = 1 << 18; // bytes; a longer body reports how much of it was sent
const REASON = /^(ticket_[a-z_]+|other_terms|other_key|too_often)$/; // refusals that a person can do something about; all others are shown as "refused"

export class Trouble extends Error {
  /**
   * What went wrong.
   * @param {string} code chooses the text that the page shows
   * @param {string} detail
   * @param {string | null} server the address at fault, if one is
   * @param {string | null} reason the code of its refusal, if it refused and said why
   */
  constructor(code, detail = "", server = null, reason = null) {
    super(`${code}: ${detail}`);
    this.code = code;
    this.detail = detail;
    this.server = server;
    this.reason = reason;
  }
}

/** Lets code wait until other code calls `move`. */
export class Signal {
  /** @type {(() => void)[]} */
  waiting = [];

  /** @returns {Promise<void>} */
  wait() {
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  move() {
    for (const wake of this.waiting.splice(0)) wake();
  }
}

/**
 * Read a body of at most `most` bytes, or hand it to `into`. Return null if it is longer.
 * @param {Response} response
 * @param {number} most
 * @param {Into | null} into
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
    if (into) await into.take(value);
    else parts.push(value);
  }
}

/**
 * Post a long body, and report how much of it was sent. `fetch` cannot report that. But here the answer arrives as a whole,
 * and if the server that sent this page set a cookie, the browser sends it back to that server. Redirects are refused.
 * @param {string} url
 * @param {Bytes} body
 * @param {number} most bytes of the answer
 * @param {AbortSignal} signal
 * @param {Sent} sent
 * @returns {Promise<Response>}
 */
const upload = (url, body, most, signal, sent) => new Promise((resolve, reject) => {
  const call = new XMLHttpRequest();
  call.open("POST", url);
  call.responseType = "arraybuffer";
  call.setRequestHeader("content-type", MEDIA_TYPE);
  call.upload.onprogress = ({ loaded }) => sent(loaded);
  call.onprogress = ({ loaded }) => {
    if (loaded <= most) return;
    reject(new Trouble("malformed_answer", "too long"));
    call.abort();
  };
  call.onload = () => {
    if (call.responseURL === new URL(url).href) resolve(new Response(call.response, { status: call.status }));
    else reject(new TypeError("redirected"));
  };
  call.onerror = call.onabort = () => reject(new TypeError("no connection"));
  signal.onabort = () => call.abort();
  call.send(body);
});

/**
 * Return the code of a refusal, null if it gives none.
 * @param {Bytes} said
 */
function reasonOf(said) {
  try {
    const { code } = JSON.parse(new TextDecoder().decode(said));
    return typeof code === "string" ? code : null;
  } catch {
    return null;
  }
}

/**
 * Send a request; if the connection breaks, send the same bytes again, for up to `patience` milliseconds.
 * @param {string} server
 * @param {string} path
 * @param {Bytes | null} body
 * @param {number} most bytes of the answer
 * @param {Options} options
 * @param {Into | null} into
 */
export async function request(server, path, body, most, { timeout = TIMEOUT, patience = PATIENCE, sent = () => {} } = {}, into = null) {
  const limit = timeout + (1000 * (most + (body?.length ?? 0))) / SLOWEST; // long messages may take longer
  const began = performance.now();
  let until = began + patience;
  const end = until + limit; // the deadline of all attempts together
  for (let pause = PAUSE; ; pause = Math.min(2 * pause, LONGEST_PAUSE)) {
    const before = into?.taken() ?? 0;
    /** @type {string | null} */
    let reason = null;
    /** @type {Trouble | null} */
    let refusal = null;
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), limit);
    into?.begin();
    try {
      const response = await (body && body.length > LONG ? upload(server + path, body, most, stop.signal, sent) : fetch(server + path, {
        method: body ? "POST" : "GET", body, signal: stop.signal, credentials: "omit", redirect: "error", cache: "no-store",
        referrerPolicy: "no-referrer", headers: body ? { "content-type": MEDIA_TYPE } : {},
      }));
      const said = await content(response, most, response.ok ? into : null);
      if (said === null) throw new Trouble("malformed_answer", "too long", server);
      if (response.ok) return said;
      reason = reasonOf(said);
      refusal = new Trouble(reason !== null && REASON.test(reason) ? reason : "refused", `HTTP ${response.status}`, server, reason);
      const isOther = OTHER_OFFER.some((code) => code === reason); // another process at this address may have this offer
      if (isOther) until = Math.min(until, began + OTHERS);
      else if (RETRIED.some((status) => status === response.status)) refusal = null;
      else throw refusal;
    } catch (error) {
      stop.abort();
      if (error instanceof Trouble) throw error.server ? error : new Trouble(error.code, error.detail, server);
      if (into && into.taken() > before) [until, pause] = [performance.now() + patience, PAUSE]; // this attempt brought new bytes, so patience starts again
      // the connection broke, so the loop sends the same bytes again
    } finally {
      clearTimeout(timer);
    }
    if (performance.now() + pause > Math.min(until, end)) throw refusal ?? new Trouble("unreachable", "", server, reason);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/**
 * Wait for all, so that no server notices that another failed; then throw the first error.
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
