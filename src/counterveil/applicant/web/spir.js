// Fetch one record and nothing else. `Subsets` is for servers that do not collude. `Polynomials` is for servers of which
// some may collude, and for a set of servers that the applicant chose. What is fetched is a package: a part of one, or a
// mixture of several, tells nothing.

import { GF256_POLYNOMIAL, KEY_BYTES, LEAST_PART } from "./constants.js";
import { concat, sha256 } from "./wire.js";

/** @typedef {import("./wire.js").Bytes} Bytes */

/** @type {(count: number) => Bytes} */
export const bytesOf = (count) => {
  const out = new Uint8Array(count);
  for (let at = 0; at < count; at += 65536) crypto.getRandomValues(out.subarray(at, at + 65536));
  return out;
};

/** @type {(a: Bytes, b: Bytes) => Bytes} */
export const xor = (a, b) => a.map((byte, i) => byte ^ b[i]);

class Subsets {
  /** @param {number} servers @param {number} length bytes of a record */
  constructor(servers, length) {
    this.servers = servers;
    this.parts = servers - 1;
    this.length = length;
    this.part = Math.ceil(length / this.parts); // bytes that each server sends down
  }

  /** @param {number} count @param {number} position */
  query(count, position, random = bytesOf) {
    const bits = count * this.parts;
    const noise = random(Math.ceil(bits / 8));
    if (bits % 8) noise[noise.length - 1] &= (1 << bits % 8) - 1;
    return Array.from({ length: this.servers }, (_, n) => {
      const query = noise.slice();
      if (n < this.parts) {
        const bit = position * this.parts + n;
        query[Math.floor(bit / 8)] ^= 1 << bit % 8; // `>>` would cut a number of bits above 2^31
      }
      return query;
    });
  }

  /**
   * The record is cut into almost equal parts. Part j is answer j xor the last answer.
   * @param {Bytes[]} answers
   */
  recover(answers) {
    const last = answers[answers.length - 1];
    /** @type {(j: number) => number} */
    const cut = (j) => Math.floor((j * this.length) / this.parts);
    return concat(...answers.slice(0, -1).map((answer, j) => xor(answer, last).slice(0, cut(j + 1) - cut(j))));
  }
}

/**
 * Return the record in a whole package; anything else gives noise.
 * @param {Bytes} whole
 */
export async function unpackage(whole) {
  const body = whole.slice(0, -KEY_BYTES);
  const key = xor(whole.slice(-KEY_BYTES), await sha256(body));
  const imported = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["decrypt"]);
  const opened = await crypto.subtle.decrypt({ name: "AES-CTR", counter: new Uint8Array(16), length: 128 }, imported, body);
  return new Uint8Array(opened);
}

// GF(2^8) by logarithms to the generator x + 1.
const EXP = new Uint8Array(510), LOG = new Uint8Array(256);
for (let i = 0, x = 1; i < 255; i++) {
  EXP[i] = EXP[i + 255] = x;
  LOG[x] = i;
  x ^= (x << 1) ^ (x & 128 ? GF256_POLYNOMIAL : 0);
  x &= 255;
}
/** @type {(a: number, b: number) => number} */
const times = (a, b) => (a && b ? EXP[LOG[a] + LOG[b]] : 0);
/** @type {(a: number, b: number) => number} */
const over = (a, b) => (a ? EXP[LOG[a] + 255 - LOG[b]] : 0);

class Polynomials {
  /** @param {number} servers @param {number} collusion @param {number} length bytes of a record */
  constructor(servers, collusion, length) {
    this.servers = servers;
    this.collusion = collusion;
    this.length = length;
    this.part = length;
  }

  /** @param {number} count @param {number} position */
  query(count, position, random = bytesOf) {
    const drawn = random(this.collusion * count);
    const pads = Array.from({ length: this.collusion }, (_, t) => drawn.subarray(t * count, (t + 1) * count));
    return Array.from({ length: this.servers }, (_, n) => {
      const query = new Uint8Array(count);
      for (let i = 0; i < count; i++) {
        let total = 0;
        for (let t = this.collusion - 1; t >= 0; t--) total = times(total ^ pads[t][i], n + 1);
        query[i] = total ^ (i === position ? 1 : 0);
      }
      return query;
    });
  }

  /** @param {Bytes[]} answers */
  recover(answers) {
    const weights = answers.map((_, n) => {
      let weight = 1;
      for (let m = 0; m < this.servers; m++) if (m !== n) weight = times(weight, over(m + 1, (m + 1) ^ (n + 1)));
      return weight;
    });
    return answers[0].map((_, i) => answers.reduce((total, answer, n) => total ^ times(answer[i], weights[n]), 0));
  }
}

/** @type {(servers: number, collusion: number, length: number, chosen: boolean) => Subsets | Polynomials} */
export const makeSpir = (servers, collusion, length, chosen) =>
  collusion > 1 || chosen || servers - 1 > Math.max(1, Math.floor(length / LEAST_PART))
    ? new Polynomials(servers, collusion, length) : new Subsets(servers, length);
