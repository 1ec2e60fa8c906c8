// A person's preferences, turned into a cost for every level of every feature. They are private to this computer.

import { FEWEST_STEPS, LEAST_UNIT } from "./constants.js";
import { rint } from "./schema.js";

/**
 * A person's wishes about one feature.
 * @typedef {object} Wish
 * @property {number} [weight] how reluctant they are to change it
 * @property {Way} [change]
 * @property {number} [low] the lowest value they could live with
 * @property {number} [high]
 */

/** @typedef {"free" | "up" | "down" | "locked"} Way how a feature may change */
/** @typedef {Map<import("./schema.js").Feature, Wish> & { fewest?: boolean }} Wishes `fewest`: fewest changes first, then least cost */

/** @type {Record<import("./schema.js").Feature["change"], Way>} */
const RULED = { any: "free", up: "up", down: "down", never: "locked" };

/**
 * Return what holds for a feature unless a person says otherwise: the schema's rule, which they may make stricter.
 * @param {import("./schema.js").Feature} f
 */
export const ruled = (f) => ({ change: RULED[f.change], weight: f.effort });

/**
 * Return the loosest wish that a person may have of a feature.
 * @param {import("./schema.js").Feature} f
 * @returns {Wish}
 */
export const widest = (f) => ({ change: f.override ? "free" : ruled(f).change });

/**
 * Return the ways of change that a person may choose.
 * @param {import("./schema.js").Feature} f
 * @returns {Way[]}
 */
export function waysOf(f) {
  const { change } = ruled(f);
  if (change !== "free" && !f.override) return change === "locked" ? ["locked"] : [change, "locked"];
  return f.ordered && f.kind !== "boolean" ? ["free", "up", "down", "locked"] : [...new Set(/** @type {Way[]} */ (["free", change, "locked"]))];
}

/** The public numbers that bound every cost. They do not depend on who asks. */
export class Tariff {
  /** @param {import("./schema.js").Schema} schema @param {number} maxWeight @param {number} dMin @param {number} [unit] if the deployment chose one */
  constructor(schema, maxWeight, dMin, unit) {
    this.features = schema.costed;
    this.stretch = Math.max(1, ...this.features.filter((f) => f.ordered).map((f) => f.steps));
    this.coarse = unit !== undefined;
    this.unit = unit ?? Math.max(this.stretch ** 2, LEAST_UNIT);
    const twice = this.features.some((f) => f.kind === "categorical" && f.encoding === "one-hot");
    const cost = BigInt(maxWeight) * BigInt(this.unit) * (twice ? 2n : 1n), room = BigInt(FEWEST_STEPS * (this.features.length + 1) + 1);
    this.cap = this.coarse && room > cost ? room : cost;
    this.forbidden = BigInt(this.features.length) * this.cap + BigInt(dMin);
    this.bound = BigInt(this.features.length) * this.forbidden;
  }
}

/**
 * Return the cost of every level of every feature.
 * @param {Tariff} tariff
 * @param {import("./schema.js").Levels} own
 * @param {Wishes} wishes
 */
export function costTables(tariff, own, wishes) {
  const allowed = tariff.features.map((f) => allowedLevels(f, levelOf(own, f), wishes.get(f) ?? ruled(f)));
  const exact = exactTables(tariff, own, wishes), coarse = tariff.coarse || wishes.fewest === true;
  const able = tariff.features.filter((f, j) => allowed[j].some((may, code) => may && code !== levelOf(own, f))).length;
  const steps = Number((tariff.cap - 1n) / BigInt(able + 1)); // the costs that `fewest` tells apart
  if (wishes.fewest && steps < 1) throw new RangeError("fewest changes first: the unit of cost is too small");
  const dearest = Math.max(...exact.flatMap((table, j) => table.filter((_, code) => allowed[j][code]))) || 1;
  return tariff.features.map((f, j) => {
    const a = levelOf(own, f), weight = BigInt(wishes.get(f)?.weight ?? f.effort);
    return exact[j].map((cost, code) => {
      if (!allowed[j][code]) return tariff.forbidden;
      if (wishes.fewest) return BigInt(whole(steps / dearest, cost, coarse)) + (code === a ? 0n : BigInt(able * steps + 1));
      return BigInt(whole(tariff.unit, distance(f, a, code), coarse)) * weight;
    });
  });
}

/**
 * Return the cost of every level before it is rounded, where 1 is a change across a whole range at weight 1.
 * @param {Tariff} tariff
 * @param {import("./schema.js").Levels} own
 * @param {Wishes} wishes
 */
export function exactTables(tariff, own, wishes) {
  return tariff.features.map((f) => Array.from({ length: f.largest + 1 }, (_, code) => distance(f, levelOf(own, f), code) * (wishes.get(f)?.weight ?? f.effort)));
}

/** Return a distance in whole units; where units are coarse, no distance above 0 becomes 0. @param {number} unit @param {number} apart @param {boolean} coarse */
function whole(unit, apart, coarse) {
  const cost = rint(rint(unit * apart * 1e6) / 1e6); // rounded twice, so that a rounding error decides no half
  return coarse && apart > 0 ? Math.max(1, cost) : cost;
}

/** @param {import("./schema.js").Levels} levels @param {import("./schema.js").Feature} f */
export function levelOf(levels, f) {
  const level = levels.get(f);
  if (level === undefined) throw new RangeError(`${f.title}: nothing given`);
  return level;
}

/** @param {import("./schema.js").Feature} f @param {number} a @param {number} code */
function distance(f, a, code) {
  const full = f.kind === "categorical" && f.encoding === "one-hot" ? 2 : 1;
  if (a > f.steps || !f.ordered) return code === a ? 0 : full;
  if (code > f.steps) return full;
  return (Math.abs(code - a) / f.steps) ** 2;
}

/** @param {import("./schema.js").Feature} f @param {number} a @param {Wish} wish */
export function allowedLevels(f, a, wish) {
  const [first, last] = levelsWithin(f, wish);
  return Array.from({ length: f.largest + 1 }, (_, code) => {
    if (code > f.steps && a <= f.steps) return false; // nobody is told to leave a value out
    if (wish.change === "locked" && code !== a) return false;
    if (f.ordered && (wish.change === "up" || wish.change === "down") && code !== a) {
      if (code > f.steps || a > f.steps || (wish.change === "up" ? code < a : code > a)) return false;
    }
    return code >= first && code <= last;
  });
}

/**
 * Return the first and the last level of a range: those that its ends fall into. A range without levels ends before it begins.
 * @param {import("./schema.js").Feature} f
 * @param {Wish} wish
 */
function levelsWithin(f, { low = -Infinity, high = Infinity }) {
  if (low === -Infinity && high === Infinity) return [0, f.largest];
  if (f.kind !== "numeric") return [low, Math.min(high, f.steps)];
  const slack = 1e-9 * (f.high - f.low);
  if (low > Math.min(high, f.high) + slack || high < f.low - slack) return [1, 0];
  return [f.code(low), f.code(high)];
}
