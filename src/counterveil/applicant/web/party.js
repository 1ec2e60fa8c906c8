// Parties: generators that say what they send and what they wait for, and do no input or output themselves.

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {{ what: "send", to: number, body: Bytes, request: number, among: number[] }} Send hands bytes to a server; it never waits
 * @typedef {{ what: "take", source: number, count: number, request: number }} Take waits for `count` bytes of a server's answer
 * @typedef {Send | Take} Effect servers are named by their seats: seat 0 is the first server of the ticket
 */

/**
 * @template T
 * @typedef {Generator<Effect, T, Bytes>} Party a Take gets bytes back, a Send gets nothing
 */

/**
 * @template T
 * @typedef {AsyncGenerator<Effect, T, Bytes>} HashingParty a party that also waits for the browser's AES between its effects
 */

/**
 * @param {number} to
 * @param {Bytes} body
 * @param {number} request
 * @param {number[]} among the seats that get this request; empty: all of them
 * @returns {Send}
 */
export const send = (to, body, request = 0, among = []) => ({ what: "send", to, body, request, among });

/** @type {(source: number, count: number, request?: number) => Take} */
export const take = (source, count, request = 0) => ({ what: "take", source, count, request });

/** Bytes that have arrived and were not taken yet, by sender and request. */
export class Inbox {
  /** @type {Map<string, Bytes[]>} */
  held = new Map();
  /** @type {Map<string, number>} */
  sizes = new Map();

  /** @param {number} source @param {number} request @param {Bytes} bytes */
  put(source, request, bytes) {
    const name = `${source}/${request}`;
    if (!this.held.has(name)) this.held.set(name, []);
    this.held.get(name)?.push(bytes);
    this.sizes.set(name, this.size(source, request) + bytes.length);
  }

  /** @param {number} source @param {number} request */
  size(source, request) {
    return this.sizes.get(`${source}/${request}`) ?? 0;
  }

  /** @param {Take} wanted */
  has({ source, request, count }) {
    return this.size(source, request) >= count;
  }

  /**
   * Return exactly as many bytes as are wanted, in a new array.
   * @param {Take} wanted
   */
  take({ source, request, count }) {
    const name = `${source}/${request}`, parts = this.held.get(name) ?? [], whole = new Uint8Array(count);
    this.sizes.set(name, this.size(source, request) - count);
    for (let at = 0; at < count;) {
      const part = parts[0].subarray(0, count - at);
      whole.set(part, at);
      at += part.length;
      if (part.length < parts[0].length) parts[0] = parts[0].subarray(part.length);
      else parts.shift();
    }
    return whole;
  }
}
