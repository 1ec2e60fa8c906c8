// A deployment, made from its terms: how a question is encoded in it, and which rows are the nearest.

import { Regions } from "./boxes.js";
import { ANSWER_LIMIT, DEALERS, FIELD_LIMIT, KEY_BYTES, LARGEST_UNIT, MOST_ROBUST, MOST_ROWS, MOST_SERVERS, PROFILES, PROTOCOL, SIGNATURE_BYTES } from "./constants.js";
import { bitsOf, mod, smallestPrimeAbove } from "./field.js";
import { answerBytes, height } from "./garble.js";
import { dealtBytes, planned } from "./joint.js";
import { Trouble } from "./network.js";
import { costTables, Tariff } from "./preferences.js";
import { Schema } from "./schema.js";
import { packedBytes } from "./wire.js";

/**
 * @typedef {import("./preferences.js").Wishes} Wishes
 * @typedef {import("./schema.js").Levels} Levels
 * @typedef {import("./wire.js").Terms} Terms
 */

/**
 * Return who deals for the servers that compute the reveal, null if nobody does, whether servers get seeds, and the profile
 * of rounds; refuse a protocol that the page does not know.
 * @param {import("./wire.js").Parameters} parameters
 * @param {boolean} sealed
 * @param {boolean} inside
 */
function computed({ protocol, options = {} }, sealed, inside) {
  const joint = protocol === "joint" && sealed && !inside, usual = sealed ? "garbled" : "padded";
  const { dealer = "applicant", seeded = false, rounds = "balanced", ...unknown } = Object(options.protocol ?? {});
  const fine = DEALERS.includes(dealer) && typeof seeded === "boolean" && PROFILES.includes(rounds);
  const isKnown = joint ? fine && Object.keys(unknown).length === 0 : Object.keys(options.protocol ?? {}).length === 0;
  const isUsual = protocol === undefined || protocol === usual;
  if (!(joint || isUsual) || !isKnown) throw new Trouble("form", String(protocol ?? "table"));
  return { dealer: joint ? dealer : null, seeded: joint && seeded, rounds };
}

/** A deployment, made from terms that all servers agree on. It refuses terms that would not keep a question secret. */
export class Deployment {
  /** @param {Terms} terms @param {Schema} [schema] one that was made from the same features, if there is one */
  constructor(terms, schema = new Schema(terms.schema)) {
    const { parameters } = terms;
    const [form, reveal] = parameters.scheme.split("/");
    this.form = form;
    this.reveal = reveal;
    if (terms.version !== PROTOCOL) throw new Trouble("terms", `version ${terms.version}`);
    const { unit, intervals, certificate } = optionsOf(terms);
    if (this.form !== "table") throw new Trouble("form", this.form);
    const { servers, collusion, k, max_weight: maxWeight, d_min: dMin } = parameters;
    const whole = [servers, collusion, k, maxWeight, dMin, terms.rows].every((v) => Number.isSafeInteger(v) && v >= 1);
    const masked = this.reveal.startsWith("masked");
    this.inside = this.reveal === "sealed_record"; // one answer brings all records, each locked
    this.sealed = this.reveal === "sealed" || this.inside;
    const { dealer, seeded, rounds } = computed(parameters, this.sealed, this.inside);
    this.joint = dealer !== null; // two servers compute the reveal together
    this.garbled = this.sealed && !this.joint;
    this.fetches = !this.joint && !this.inside; // whether records are fetched in requests of their own
    this.deals = dealer === "applicant";
    this.seeded = seeded;
    this.rounds = rounds;
    const known = this.sealed || ["distances", "differences", "masked", "masked_differences"].includes(this.reveal);
    if (!whole || !Number.isInteger(terms.robust) || terms.robust < 0 || terms.robust > MOST_ROBUST || !known || servers <= collusion || servers > MOST_SERVERS || terms.rows > MOST_ROWS || (masked ? k > 1 && dMin > 1 : dMin !== 1))
      throw new Trouble("terms", "parameters");
    if (this.sealed && (collusion !== 1 || servers < 2 + terms.robust || !parameters.shuffle || k > (this.joint ? terms.rows : 1))) throw new Trouble("terms", "sealed");
    if ((terms.dealer !== undefined) !== (dealer === "server") || (terms.dealer !== undefined && terms.robust)) throw new Trouble("terms", "dealer"); // one who deals for all could spoil all
    this.terms = terms;
    this.schema = schema;
    this.collusion = collusion;
    this.differences = this.reveal.endsWith("differences");
    this.mask = masked ? dMin : 1;
    this.tariff = new Tariff(this.schema, maxWeight, dMin, unit);
    this.regions = terms.record === "region" ? new Regions(this.schema, intervals) : null;
    this.certificate = certificate;
    this.q = BigInt(terms.q);
    this.alphas = terms.alphas.map(BigInt);
    this.top = this.tariff.bound + BigInt(this.mask) - 1n;
    const bound = this.differences ? 2n * this.top : this.top;
    if (bound >= FIELD_LIMIT / 2n) throw new Trouble("terms", "costs beyond any field"); // q is at most twice the bound, and an element must fit into a random word of 64 bits
    const smallest = this.sealed ? 1n << BigInt(bound.toString(2).length) : smallestPrimeAbove(bound > BigInt(servers) ? bound : BigInt(servers));
    if (this.q !== smallest) throw new Trouble("terms", `q is ${this.q}, and should be ${smallest}`);
    const points = new Set(this.alphas.map((alpha) => (this.sealed ? alpha : mod(alpha, this.q))));
    if (this.alphas.length !== servers || points.size !== this.alphas.length || points.has(0n))
      throw new Trouble("terms", "alphas");
    this.rows = terms.rows;
    this.length = this.differences ? this.rows - 1 : this.rows;
    this.positions = this.sealed ? 2 ** height(this.rows) : this.rows;
    this.recordBytes = (this.regions?.recordBytes ?? this.schema.recordBytes(terms.record)) + SIGNATURE_BYTES + KEY_BYTES; // signed and packaged
    const largest = Math.max(...this.answers(1, k));
    if (!(largest < ANSWER_LIMIT)) throw new Trouble("terms", `answers of ${largest} bytes`);
    if (!(Math.max(...this.tapes(k)) < ANSWER_LIMIT)) throw new Trouble("too_large"); // the page would have to keep it in memory
  }

  /** What a question reveals, in one line. A ticket carries the same line. */
  get reveals() {
    const { scheme, shuffle, d_min: dMin } = this.terms.parameters;
    return scheme.slice(scheme.indexOf("/") + 1) + (shuffle ? ", shuffled" : "") + (dMin > 1 ? `, mask below ${dMin}` : "");
  }

  /**
   * Return how many bytes the answer to one question has, for each server.
   * @param {number} servers
   * @param {number} k
   * @returns {number[]}
   */
  answers(servers, k) {
    const bits = bitsOf(this.q);
    if (this.joint) return Array(2).fill(k * this.recordBytes);
    return this.sealed ? answerBytes(this.rows, bits, this.inside ? this.recordBytes : 0) : Array(servers).fill(packedBytes(bits, this.length));
  }

  /**
   * Return the batches of a question to servers that compute the reveal together.
   * @param {number} k
   */
  batches(k) {
    return planned(this.rows, bitsOf(this.q), k, this.rounds);
  }

  /**
   * Return how many bytes the applicant deals to each server of a run.
   * @param {number} k
   */
  tapes(k) {
    return this.deals ? dealtBytes(this.batches(k), this.seeded) : [0, 0];
  }

  needed(liars = 0) {
    return this.sealed ? 2 + liars : this.collusion + 1 + 2 * liars;
  }

  /**
   * Return the seats of the servers that work on a question together; none if there are too few servers, or too many. All
   * servers do, or pairs of them: all pairs of v + 2 servers if v of them may lie, or v + 1 pairs of 2v + 2 servers.
   * @param {number} count
   * @param {number} liars
   */
  runs(count, liars) {
    const seats = Array.from({ length: count }, (_, seat) => seat);
    if (!this.sealed) return count === this.needed(liars) ? [seats] : [];
    if (count === 2 + liars) return seats.flatMap((one) => seats.slice(one + 1).map((other) => [one, other]));
    return count === 2 + 2 * liars ? seats.filter((seat) => seat % 2 === 0).map((seat) => [seat, seat + 1]) : [];
  }

  /**
   * Return the costs of all rows. If only differences are revealed, all costs are shifted by the same unknown number.
   * @param {bigint[]} revealed
   */
  relative(revealed) {
    if (!this.differences) return revealed;
    const costs = [0n];
    for (const r of revealed) costs.push(costs[costs.length - 1] - (r > this.q / 2n ? r - this.q : r));
    return costs;
  }
}

const DECIMAL = /^([0-9]+(\.[0-9]+)?(e-[0-9]+)?)?$/u; // what an institution states of differential privacy, or nothing

/** @typedef {{ model: string, sampled: number, at_most: number }} Certificate which model decides; `sampled` is 0 if its regions are certified */

/**
 * Return the options of terms that this page knows; refuse all others.
 * @param {Terms} terms
 * @returns {{ unit?: number, intervals: boolean, certificate: Certificate | null }}
 */
function optionsOf({ record, parameters }) {
  const isWhole = (/** @type {unknown} */ v, /** @type {number} */ low, /** @type {number} */ high) => Number.isSafeInteger(v) && Number(v) >= low && Number(v) <= high;
  const { form = {}, record: own = {}, ...others } = parameters.options ?? {};
  const { unit, ...forms } = form, { intervals = false, model, sampled = 0, at_most: atMost = 0, epsilon = "", delta = "", ...records } = own;
  const isRegion = record === "region", unknown = Object.keys(others).some((part) => part !== "protocol") || [forms, records].some((each) => Object.keys(each).length);
  if (unknown || (!isRegion && Object.keys(own).length)) throw new Trouble("form", parameters.scheme);
  const fine = (unit === undefined ? !isRegion : isWhole(unit, 1, LARGEST_UNIT)) && typeof intervals === "boolean"
    && isWhole(sampled, 0, Number.MAX_SAFE_INTEGER) && isWhole(atMost, 0, 1e6)
    && [epsilon, delta].every((each) => typeof each === "string" && each.length <= 24 && DECIMAL.test(each)) && (isRegion ? /^[0-9a-f]{64}$/.test(String(model)) : true);
  if (!fine) throw new Trouble("terms", "options");
  const certificate = isRegion ? { model: String(model), sampled: Number(sampled), at_most: Number(atMost) } : null;
  return { unit: unit === undefined ? undefined : Number(unit), intervals: intervals === true, certificate };
}

/**
 * Return the vector that is shared: the cost tables. A sealed reveal has one more entry, a number that is added to every
 * cost. An applicant sends 0 there.
 * @type {(deployment: Deployment, own: Levels, wishes: Wishes) => bigint[]}
 */
export const secretOf = (deployment, own, wishes) => {
  const tables = costTables(deployment.tariff, own, wishes);
  return [...(deployment.regions?.tables(tables) ?? tables).flat(), ...(deployment.sealed ? [0n] : [])];
};

/**
 * Return the positions of the k least costs, each at least `apart` above the one before. If too few are that far apart,
 * the nearest of the others are taken as well. k passes and no sort, so that the time does not depend on the costs.
 * @param {bigint[]} costs
 * @param {number} k
 */
export function nearest(costs, k, apart = 0n) {
  const taken = new Uint8Array(costs.length);
  /** @type {bigint | null} */
  let from = null; // the least cost that the next one should have
  return Array.from({ length: Math.min(k, costs.length) }, () => {
    let best = -1, far = -1;
    for (let i = 0; i < costs.length; i++) {
      if (taken[i]) continue;
      if (best < 0 || costs[i] < costs[best]) best = i;
      if (from !== null && costs[i] >= from && (far < 0 || costs[i] < costs[far])) far = i;
    }
    const chosen = far < 0 ? best : far;
    taken[chosen] = 1;
    if (apart && (from === null || far >= 0)) from = costs[chosen] + apart;
    return chosen;
  });
}
