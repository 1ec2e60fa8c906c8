// Evaluate the garbled circuit of a sealed reveal as it arrives. It tells the position of the nearest row, and nothing else.
// A wire is a Uint32Array with four words for each row: one label of 16 bytes, the only one that this computer gets.

import { AND, CHUNK_BITS, KEY_STEPS, LABEL, LEVEL_STEPS, PAD_STEP, PASS_STEP, SEAL_KEY } from "./constants.js";
import { take } from "./party.js";

const CHUNK = 1 << CHUNK_BITS; // rows
const STRIDE = 65536; // bytes of records at a time

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {Uint32Array<ArrayBuffer>} Wire
 * @typedef {{ cost: Wire[], place: Wire[], rows: number }} Round the rows still in the tournament: the bits of their costs and of their positions
 */

const key = crypto.subtle?.importKey("raw", new TextEncoder().encode(SEAL_KEY), "AES-CBC", false, ["encrypt", "decrypt"]);

/**
 * Decrypt every block with AES-128. Browsers offer only AES-CBC, which chains blocks and expects padding. So this adds a
 * block of padding, and removes the chaining afterwards.
 * @param {Wire} words
 */
async function permute(words) {
  const blocks = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  const end = await crypto.subtle.encrypt({ name: "AES-CBC", iv: blocks.slice(-LABEL) }, await key, new Uint8Array());
  const data = new Uint8Array(blocks.length + LABEL);
  data.set(blocks);
  data.set(new Uint8Array(end), blocks.length);
  const out = new Uint32Array(await crypto.subtle.decrypt({ name: "AES-CBC", iv: new Uint8Array(LABEL) }, await key, data));
  for (let i = 4; i < out.length; i++) out[i] ^= words[i - 4];
  return out;
}

/**
 * Hash labels: H(x, t) = π(π(x) xor t) xor π(x)
 * @param {Wire} words
 * @param {(words: Wire, at: number) => void} tweak
 */
async function hashed(words, tweak) {
  const inner = await permute(words);
  const outer = inner.slice();
  for (let i = 0; i < outer.length; i += 4) tweak(outer, i);
  const out = await permute(outer);
  for (let i = 0; i < out.length; i++) out[i] ^= inner[i];
  return out;
}

/** @param {Wire} words @param {number} at @param {number} step @param {number} low */
function xorTweak(words, at, step, low) {
  words[at] ^= low;
  words[at + 1] ^= Math.floor(low / 2 ** 32);
  words[at + 2] ^= step;
  words[at + 3] ^= Math.floor(step / 2 ** 32);
}

/** @type {(a: Wire, b: Wire) => Wire} */
const mixed = (a, b) => {
  const out = a.slice();
  for (let i = 0; i < out.length; i++) out[i] ^= b[i];
  return out;
};

/** @param {Wire[]} parts */
function join(parts) {
  const whole = new Uint32Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

class Gates {
  tables = new Uint32Array();

  /** @param {Bytes} bytes */
  load(bytes) {
    this.tables = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  }

  /** @param {Wire} a @param {Wire} b @param {number} rows @param {number} step @param {number} first */
  async both(a, b, rows, step, first) {
    const size = a.length;
    const out = await hashed(join([a, b]), (words, i) => {
      const gate = (i % size) / 4;
      xorTweak(words, i, step + Math.floor(gate / rows), 2 * (first + (gate % rows)) + (i < size ? 0 : 1));
    });
    const result = new Uint32Array(size), t = this.tables;
    for (let i = 0; i < size; i++) {
      const colours = i & ~3, mine = -(a[colours] & 1), theirs = -(b[colours] & 1);
      result[i] = out[i] ^ (t[i] & mine) ^ out[size + i] ^ ((t[size + i] ^ a[i]) & theirs);
    }
    this.tables = t.subarray(2 * size);
    return result;
  }
}

/** @type {(count: number) => number} */
export const height = (count) => (count > 1 ? 32 - Math.clz32(count - 1) : 0);

/** @type {(count: number) => Generator<[start: number, rows: number]>} */
function* chunks(count) {
  for (let start = 0; start < count; start += CHUNK) yield [start, Math.min(CHUNK, count - start)];
}

/** @param {number} nodes @param {number} low @param {number} high @param {number} bits */
function played(nodes, low, high, bits) {
  let total = 0;
  for (let level = low; level < high; level++, nodes = (nodes + 1) >> 1) total += (nodes >> 1) * (2 * bits + level);
  return total;
}

/**
 * Count the AND gates of every chunk, and those of the rounds between chunks.
 * @param {number} count
 * @param {number} bits
 * @returns {[sizes: number[], last: number]}
 */
export function ands(count, bits) {
  const top = height(count), within = Math.min(top, CHUNK_BITS);
  const sizes = [...chunks(count)].map(([, rows]) => rows * (bits - 1) + played(rows, 0, within, bits));
  let last = played(sizes.length, within, top, bits);
  if (sizes.length > 1) last -= bits;
  else if (top) sizes[0] -= bits;
  return [sizes, last];
}

/** @param {Gates} gates @param {Wire[]} u @param {Wire[]} v @param {number} rows @param {number} start */
async function add(gates, u, v, rows, start) {
  const total = u.map((wire, i) => mixed(wire, v[i]));
  let carry = new Uint32Array(4 * rows);
  for (let i = 0; i + 1 < u.length; i++) {
    carry = mixed(carry, await gates.both(mixed(u[i], carry), mixed(v[i], carry), rows, i, start));
    total[i + 1] = mixed(total[i + 1], carry);
  }
  return total;
}

/** @param {Wire} wire @param {number} pairs @param {0 | 1} which */
function every2nd(wire, pairs, which) {
  const out = new Uint32Array(4 * pairs);
  for (let i = 0; i < out.length; i++) out[i] = wire[8 * (i >> 2) + 4 * which + (i & 3)];
  return out;
}

/** @param {Gates} gates @param {Round} node @param {number} level @param {number} first @param {boolean} last @returns {Promise<Round>} */
async function round(gates, node, level, first, last) {
  const pairs = node.rows >> 1, step = (level + 1) * LEVEL_STEPS;
  /** @type {(wires: Wire[], which: 0 | 1) => Wire[]} */
  const pick = (wires, which) => wires.map((wire) => every2nd(wire, pairs, which));
  const carried = last ? node.place : [...node.cost, ...node.place];
  let more = new Uint32Array(4 * pairs), winners = pick(carried, 0);
  if (pairs) {
    const a = pick(node.cost, 0), b = pick(node.cost, 1);
    for (let i = 0; i < a.length; i++) more = mixed(more, await gates.both(mixed(a[i], more), mixed(b[i], more), pairs, step + i, first));
    if (carried.length) {
      const seconds = pick(carried, 1);
      const differ = join(winners.map((wire, i) => mixed(wire, seconds[i])));
      const passed = await gates.both(differ, join(winners.map(() => more)), pairs, step + PASS_STEP, first);
      winners = winners.map((wire, i) => mixed(wire, passed.subarray(4 * pairs * i, 4 * pairs * (i + 1))));
    }
  }
  winners.push(more);
  if (node.rows % 2) {
    const alone = [...carried.map((wire) => wire.subarray(-4)), new Uint32Array(4)];
    winners = winners.map((wire, i) => join([wire, alone[i]]));
  }
  const split = last ? 0 : node.cost.length;
  return { cost: winners.slice(0, split), place: winners.slice(split), rows: pairs + (node.rows % 2) };
}

/** @param {Gates} gates @param {Round} node @param {number} low @param {number} high @param {number} start @param {number} count */
async function rounds(gates, node, low, high, start, count) {
  for (let level = low; level < high; level++) node = await round(gates, node, level, start >> (level + 1), level + 1 === height(count));
  return node;
}

/** @type {(bytes: Bytes, bits: number, rows: number) => Wire[]} */
const wires = (bytes, bits, rows) => Array.from({ length: bits }, (_, i) => new Uint32Array(bytes.buffer, bytes.byteOffset + LABEL * rows * i, 4 * rows));

/**
 * Return how many bytes each server's answer has. `record` is the length of a record if the answer brings it, or 0.
 * @param {number} count
 * @param {number} bits
 * @param {number} record
 */
export function answerBytes(count, bits, record) {
  const [sizes, last] = ands(count, bits);
  const gates = sizes.reduce((a, b) => a + b, last);
  const labels = LABEL * count * bits, positions = 2 ** height(count);
  return [labels + AND * gates + Math.ceil(height(count) / 8) + positions * record, labels + LABEL];
}

/**
 * Take the answers of two servers; return the position, and the record if the answer brings it.
 * @param {number} count
 * @param {number} bits
 * @param {number} record
 * @returns {import("./party.js").HashingParty<{ position: number, opened: Bytes | null }>}
 */
export async function* evaluate(count, bits, record) {
  const gates = new Gates(), [sizes, last] = ands(count, bits);
  /** @type {Round[]} */
  const winners = [];
  const top = height(count), within = Math.min(top, CHUNK_BITS);
  let n = 0;
  for (const [start, rows] of chunks(count)) {
    const u = wires(yield take(0, LABEL * bits * rows), bits, rows), v = wires(yield take(1, LABEL * bits * rows), bits, rows);
    gates.load(yield take(0, AND * sizes[n++]));
    const cost = await add(gates, u, v, rows, start);
    winners.push(await rounds(gates, { cost, place: [], rows }, 0, within, start, count));
  }
  gates.load(yield take(0, AND * last));
  /** @type {(which: "cost" | "place") => Wire[]} */
  const met = (which) => winners[0][which].map((_, i) => join(winners.map((node) => node[which][i])));
  const all = { cost: met("cost"), place: met("place"), rows: winners.length };
  const { place } = await rounds(gates, all, within, top, 0, count);
  const [opener] = wires(yield take(1, LABEL), 1, 1);
  const decode = yield take(0, Math.ceil(top / 8));
  let position = 0;
  place.forEach((label, i) => (position += ((label[0] ^ (decode[i >> 3] >> (i & 7)) ^ (opener[0] >>> i)) & 1) * 2 ** i));
  if (!record) return { position, opened: null };
  const locked = new Uint8Array(record), first = position * record;
  for (let at = 0; at < 2 ** top * record; at += STRIDE) { // the same strides for every position, because a server can see how we read
    const part = yield take(0, Math.min(STRIDE, 2 ** top * record - at));
    const from = Math.min(Math.max(first - at, 0), part.length), to = Math.min(Math.max(first + record - at, 0), part.length);
    locked.set(part.subarray(from, to), from < to ? at + from - first : 0);
  }
  return { position, opened: await unlock(opener, place, position, locked) }; // at the end, because a pause in reading would show the position
}

/** @param {Wire} opener @param {Wire[]} place @param {number} position @param {Bytes} locked */
async function unlock(opener, place, position, locked) {
  for (let i = place.length - 1; i >= 0; i--) {
    const prefix = Math.floor(position / 2 ** i);
    opener = await hashed(mixed(opener, place[i]), (words, at) => xorTweak(words, at, KEY_STEPS + i, 2 * prefix));
  }
  const blocks = Math.ceil(locked.length / LABEL);
  const pads = await hashed(join(Array(blocks).fill(opener)), (words, at) => xorTweak(words, at, PAD_STEP, 2 * (position * blocks + at / 4)));
  const bytes = new Uint8Array(pads.buffer);
  return locked.map((byte, i) => byte ^ bytes[i]);
}
