// The applicant's part in the joint protocol: deal one-time randomness to two servers, and read their answers.
// `src/counterveil/schemes/protocols/dealing.py` has the dealer in Python, and docs/wire.md says what a tape is.
// A dealer knows only public sizes. Everything here is bitwise, so it works on bytes.

import { BLOCK, KEY_BYTES, LANE_BITS, MOST_FACTORS, TREES_FROM } from "./constants.js";
import { height } from "./garble.js";
import { take } from "./party.js";
import { xor } from "./spir.js";

/**
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {Ands | Outers | Terms} Batch products that the servers compute in one round
 * @typedef {typeof import("./constants.js").PROFILES[number]} Profile
 * @typedef {(count: number) => Bytes} Reader returns the next bytes of a stream; they may be overwritten
 */

// --- which products there are ----------------------------------------------------------------------------------------

/** ANDs of words. If there are fewer right factors than left ones, they are repeated. */
export class Ands {
  /** @param {number} left words of 64 bits @param {number} right words; it divides `left` */
  constructor(left, right = left) {
    this.left = 8 * left;
    this.right = 8 * right;
    this.masks = this.left + this.right; // bytes of all factors
    this.products = this.left; // bytes
  }

  /**
   * Xor the left factors of `masks` times its right factors into `products`.
   * @param {Bytes} masks
   * @param {Bytes} products
   */
  multiply(masks, products) {
    const { left, right } = this;
    for (let start = 0; start < left; start += right) {
      for (let i = 0; i < right; i++) products[start + i] ^= masks[start + i] & masks[left + i];
    }
  }
}

/** @type {(bits: number) => number} */
const octetsOf = (bits) => Math.ceil(bits / 8);

/** Outer products of pairs of bit vectors. Vectors, and rows of products, are packed into bytes. */
export class Outers {
  /** @param {[n: number, m: number][]} sizes bits of the left and of the right vector of each pair */
  constructor(sizes) {
    this.sizes = sizes;
    this.masks = this.products = this.middle = 0;
    for (const [n, m] of sizes) {
      this.middle += octetsOf(n); // where the right vectors begin
      this.masks += octetsOf(n) + octetsOf(m);
      this.products += n * octetsOf(m);
    }
  }

  /**
   * Xor the left factors of `masks` times its right factors into `products`.
   * @param {Bytes} masks
   * @param {Bytes} products
   */
  multiply(masks, products) {
    let at = 0, left = 0, right = this.middle;
    for (const [n, m] of this.sizes) {
      const width = octetsOf(m);
      for (let i = 0; i < n; i++, at += width) {
        const chosen = -((masks[left + (i >> 3)] >> (i & 7)) & 1);
        for (let j = 0; j < width; j++) products[at + j] ^= chosen & masks[right + j];
      }
      left += octetsOf(n);
      right += width;
    }
  }
}

/** Products of some of many factors, up to four in each. All factors have the same number of words. */
export class Terms {
  /** @param {number} words of each factor @param {number[][]} terms the numbers of each product's factors, ascending */
  constructor(words, terms) {
    this.words = words;
    this.terms = terms;
    this.subsets = subsetsOf(terms);
    this.masks = 8 * words * (Math.max(...terms.flat()) + 1);
    this.products = 8 * words * this.subsets.length;
  }

  /**
   * Xor the product of every subset of two masks or more of any term into `products`.
   * @param {Bytes} masks
   * @param {Bytes} products
   */
  multiply(masks, products) {
    const size = 8 * this.words;
    let at = 0;
    for (const subset of this.subsets) {
      const [a, b, c = b, d = c] = subset.map((factor) => factor * size);
      for (let i = 0; i < size; i++) products[at + i] ^= masks[a + i] & masks[b + i] & masks[c + i] & masks[d + i];
      at += size;
    }
  }
}

/**
 * Return all subsets of two factors or more of any term, those with fewer factors first, and then by number.
 * @param {number[][]} terms
 */
function subsetsOf(terms) {
  /** @type {Map<string, number[]>} */
  const found = new Map();
  for (const term of terms) {
    for (let chosen = 0; chosen < 1 << term.length; chosen++) {
      const subset = term.filter((_, i) => (chosen >> i) & 1);
      if (subset.length > 1) found.set(subset.join(), subset);
    }
  }
  const order = (/** @type {number[]} */ a, /** @type {number[]} */ b) =>
    a.length - b.length || a.reduce((found, factor, i) => found || factor - b[i], 0);
  return [...found.values()].sort(order);
}

/** @type {(words: number, bits: number) => Generator<Batch>} */
function* ripple(words, bits) {
  for (let i = 0; i < bits; i++) yield new Ands(words);
}

/** @type {(words: number, bits: number) => Generator<Batch>} */
function* tree(words, bits) {
  yield new Ands(words * bits);
  for (let left = bits; left > 1; left -= left >> 1) yield new Ands(words * 2 * (left >> 1), words * (left >> 1));
}

/**
 * Return how many runs are left after `count` runs of bits are joined in one round, and the products that join them.
 * Factor j says whether two numbers agree on run j, and factor `count` + j whether runs j and j - 1 differ in who is ahead.
 * Factors that no product has are left out.
 * @param {number} count
 * @returns {{ runs: number, terms: number[][] }}
 */
function joined(count) {
  let rounds = 1, width = 2;
  while (MOST_FACTORS ** rounds < count) rounds++;
  while (width ** rounds < count) width++;
  const runs = Math.ceil(count / width), all = Array.from({ length: count }, (_, j) => j), terms = [];
  for (let run = 0; run < runs; run++) {
    const [low, high] = [run, run + 1].map((n) => Math.ceil((count * n) / runs));
    for (let j = low + 1; j < high; j++) terms.push([...all.slice(j, high), count + j]);
    if (low && high - low > 1) terms.push(all.slice(low, high));
  }
  const factors = [...new Set(terms.flat())].sort((a, b) => a - b);
  return { runs, terms: terms.map((term) => term.map((factor) => factors.indexOf(factor))) };
}

/** @type {(words: number, bits: number) => Generator<Batch>} */
function* wideTree(words, bits) {
  for (let count = bits + 1; count > 1;) {
    const { runs, terms } = joined(count);
    yield new Terms(words, terms);
    count = runs;
  }
}

/**
 * How the costs are added up, and how they are compared at each level of the tournament.
 * @typedef {object} Rounds
 * @property {Generator<Batch>} adder
 * @property {(level: number) => (words: number, bits: number) => Iterable<Batch>} compare
 */

/** @type {(words: number, blocks: number, bits: number) => Rounds} */
const balanced = (words, blocks, bits) => ({
  adder: ripple(words * blocks, bits - 1),
  compare: (level) => (level < TREES_FROM ? ripple : tree),
});

/**
 * Few rounds: where words meet, the adder also makes the first comparison, of bits that every tournament has.
 * @type {(words: number, blocks: number, bits: number, k: number) => Rounds}
 */
const few = (words, blocks, bits, k) => {
  const met = (words >> 1) * blocks;
  function* both() {
    yield* ripple(met + words * blocks, bits - 1);
    yield new Ands(met);
  }
  /** @type {(words: number) => Batch[]} */
  const topmost = (words) => (k > 1 ? [new Ands(words)] : []);
  if (words === 1) return { adder: ripple(blocks, bits - 1), compare: () => wideTree };
  return { adder: both(), compare: (level) => (level ? wideTree : topmost) };
};

/**
 * Levels `from`..`to` - 1 of a tournament of `top` levels: neighbours are compared, and the winner is passed on.
 * @param {number} nodes
 * @param {number} width words of each node
 * @param {number} from
 * @param {number} to
 * @param {number} top
 * @param {number} bits of a cost
 * @param {Rounds["compare"]} compare
 * @returns {Generator<Batch>}
 */
function* levels(nodes, width, from, to, top, bits, compare) {
  for (let level = from; level < to; level++, nodes = (nodes + 1) >> 1) {
    const words = (nodes >> 1) * width, passed = level + (level + 1 < top ? bits : 0);
    yield* compare(level)(words, bits);
    yield new Ands(words * passed, words);
  }
}

/**
 * Turn the bits of a place into a selection of rows: `low` bits of the word, and `high` bits of its run and block.
 * @param {number} low
 * @param {number} high
 * @param {number} words
 * @param {number} runs
 * @returns {Generator<Batch>}
 */
function* selection(low, high, words, runs) {
  let parts = [Array(low).fill(2), Array(high).fill(2)]; // lengths of one-hot vectors
  while (parts.some((part) => part.length > 1)) {
    /** @type {[n: number, m: number][]} */
    const pairs = [];
    parts = parts.map((part) => {
      const joined = [];
      for (let i = 0; i + 1 < part.length; i += 2) {
        pairs.push([part[i + 1], part[i]]);
        joined.push(part[i + 1] * part[i]);
      }
      return [...joined, ...part.slice(2 * joined.length)];
    });
    yield new Outers(pairs);
  }
  yield new Outers([[runs, words]]);
}

/**
 * Return the batches of a question, in order. They are public.
 * @param {number} rows
 * @param {number} bits of a cost
 * @param {number} k records of a question
 * @param {Profile} profile few rounds, or fewer bytes
 * @returns {Batch[]}
 */
export function planned(rows, bits, k, profile = "balanced") {
  const blocks = Math.ceil(rows / BLOCK), words = Math.ceil(rows / (blocks << LANE_BITS));
  const low = height(words), high = low + LANE_BITS, top = high + height(blocks), wide = k > 1 ? bits + 1 : bits;
  const { adder, compare } = (profile === "few" ? few : balanced)(words, blocks, bits, k);
  const batches = [...adder];
  for (let i = 0; i < k; i++) {
    batches.push(...levels(words, blocks, 0, low, top, wide, compare));
    for (let level = low; level < high; level++) batches.push(...levels(2, blocks, level, level + 1, top, wide, compare));
    batches.push(...levels(blocks, 1, high, top, top, wide, compare));
    batches.push(...selection(low, top - low, words, blocks << LANE_BITS));
  }
  return batches;
}

/**
 * Return how many bytes each server sends the other.
 * @param {Batch[]} batches
 */
export const openedBytes = (batches) => batches.reduce((total, { masks }) => total + masks, 0);

/**
 * Return how many bytes each server gets from the dealer.
 * @param {Batch[]} batches
 * @param {boolean} seeded
 */
export function dealtBytes(batches, seeded) {
  const products = batches.reduce((total, batch) => total + batch.products, 0), whole = openedBytes(batches) + products;
  return seeded ? [KEY_BYTES, KEY_BYTES + products] : [whole, whole];
}

// --- dealing ---------------------------------------------------------------------------------------------------------

/**
 * Return a reader of the first `count` bytes of the AES-256-CTR key stream of a seed.
 * @param {Bytes} seed
 * @param {number} count
 * @returns {Promise<Reader>}
 */
async function keystream(seed, count) {
  const imported = await crypto.subtle.importKey("raw", seed, "AES-CTR", false, ["encrypt"]);
  const counted = { name: "AES-CTR", counter: new Uint8Array(16), length: 128 };
  const stream = new Uint8Array(await crypto.subtle.encrypt(counted, imported, new Uint8Array(count)));
  let at = 0;
  return (wanted) => stream.subarray(at, (at += wanted));
}

/**
 * Deal the randomness of one run; return the tape of each server. Draw anew for every run: whoever sees two openings under
 * one mask learns the xor of the values that it hides.
 * @param {Batch[]} batches
 * @param {Reader} random
 * @param {boolean} seeded whether servers get seeds instead of uniform bytes
 * @param {(done: number, all: number) => Promise<void> | void} progress called after each batch, and waited for
 * @returns {Promise<[first: Bytes, second: Bytes]>}
 */
export async function deal(batches, random, seeded = false, progress = () => {}) {
  const sizes = dealtBytes(batches, seeded), all = openedBytes(batches);
  const first = new Uint8Array(sizes[0]), second = new Uint8Array(sizes[1]), at = [0, 0];
  /** @type {(seat: 0 | 1, bytes: Bytes) => void} */
  const put = (seat, bytes) => {
    (seat ? second : first).set(bytes, at[seat]);
    at[seat] += bytes.length;
  };
  let readers = [random, random];
  if (seeded) {
    const seeds = [random(KEY_BYTES), random(KEY_BYTES)], [whole] = dealtBytes(batches, false);
    put(0, seeds[0]);
    put(1, seeds[1]);
    readers = await Promise.all([keystream(seeds[0], whole), keystream(seeds[1], all)]);
  }
  let done = 0;
  for (const batch of batches) {
    const masks = readers[0](batch.masks), others = readers[1](batch.masks), products = readers[0](batch.products);
    if (!seeded) {
      put(0, masks);
      put(0, products);
      put(1, others);
    }
    for (let i = 0; i < masks.length; i++) masks[i] ^= others[i];
    batch.multiply(masks, products);
    put(1, products); // corrections: with server 1's shares they add up to the products
    await progress((done += batch.masks), all);
  }
  return [first, second];
}

// --- reading ---------------------------------------------------------------------------------------------------------

/**
 * Take the answers of both servers; return the packages of the k nearest rows.
 * @param {number} k
 * @param {number} length bytes of a package
 * @returns {import("./party.js").Party<Bytes[]>}
 */
export function* packages(k, length) {
  const both = xor(yield take(0, k * length), yield take(1, k * length));
  return Array.from({ length: k }, (_, i) => both.slice(i * length, (i + 1) * length));
}
