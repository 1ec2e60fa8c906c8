// Regions: sets of levels as codes, what it costs to move into them, and their words. `schema/boxes.py` is the same in Python.

import { ALL_SUBSETS, MOST_CODES, MOST_LEVELS_TOGETHER } from "./constants.js";
import { levelOf } from "./preferences.js";
import { SPOKEN, WORDS } from "./strings.js";

/**
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Levels} Levels
 * @typedef {boolean[]} Members for every level of a feature, the missing one included, whether it is in a set
 */

/**
 * The sets of one feature's levels that have a code, or two.
 * @typedef {object} Family
 * @property {number[]} largest the largest code of each column
 * @property {(codes: number[]) => Members} members the set that codes stand for
 * @property {(costs: bigint[]) => bigint[][]} tables the cost of every code of each column: the least over its levels
 */

/** @type {(a: bigint, b: bigint) => bigint} */
const lower = (a, b) => (b < a ? b : a);
/** @type {(count: number) => number[]} */
const upTo = (count) => Array.from({ length: count }, (_, i) => i);

/** @param {bigint[]} values */
function leastSoFar(values) {
  let least = values[0];
  return values.map((value) => (least = lower(least, value)));
}

/**
 * The sets of a category's levels, with one code. All sets have one if there are few levels. Else only single levels,
 * pairs, what is left without one or two levels, and all levels have one.
 * @param {number} count
 * @returns {Family}
 */
function subsets(count) {
  if (count <= ALL_SUBSETS) {
    const sets = upTo(2 ** count - 1).map((code) => upTo(count).map((level) => ((code + 1) >> level) % 2 === 1));
    return {
      largest: [sets.length - 1],
      members: ([code]) => sets[code],
      tables: (costs) => [sets.map((members) => costs.filter((_, level) => members[level]).reduce(lower))],
    };
  }
  const small = (count * (count + 1)) / 2;
  /** @param {number} place @returns {number[]} */
  const few = (place) => {
    if (place < count) return [place];
    let low = 0, rest = place - count;
    while (rest >= count - 1 - low) rest -= count - 1 - low++;
    return [low, low + 1 + rest];
  };
  return {
    largest: [2 * small],
    members: ([code]) => {
      const some = code < 2 * small ? few(code % small) : [];
      return upTo(count).map((level) => some.includes(level) === code < small);
    },
    tables: (costs) => {
      const cheapest = upTo(count).sort((a, b) => (costs[a] < costs[b] ? -1 : costs[a] > costs[b] ? 1 : a - b)).slice(0, 3);
      /** @type {bigint[]} */
      const inside = [...costs], outside = costs.map((_, out) => costs[cheapest[0] === out ? cheapest[1] : cheapest[0]]);
      for (let low = 0; low < count; low++) {
        for (let high = low + 1; high < count; high++) {
          inside.push(lower(costs[low], costs[high]));
          const [level = 0] = cheapest.filter((each) => each !== low && each !== high);
          outside.push(costs[level]);
        }
      }
      return [[...inside, ...outside, costs[cheapest[0]]]];
    },
  };
}

/**
 * The intervals of an ordered feature, with two codes: the lowest level and the highest. The low code also says whether
 * a missing value is inside. Whatever this page can ask for rises from one level outwards, so only one of the two costs.
 * @param {number} steps
 * @param {boolean} missing
 * @returns {Family}
 */
function interval(steps, missing) {
  return {
    largest: [missing ? 2 * steps + 2 : steps, steps],
    members: ([first, high]) => {
      const gone = Math.floor(first / (steps + 1)), low = first % (steps + 1), alone = gone > 1;
      if (alone ? high !== steps : low > high) throw new RangeError("region: a lowest level above the highest");
      return upTo(steps + 1 + Number(missing)).map((level) => (level > steps ? gone > 0 : !alone && level >= low && level <= high));
    },
    tables: (costs) => {
      const there = costs.slice(0, steps + 1), gone = costs[steps + 1], least = there.reduce(lower);
      const upwards = leastSoFar([...there].reverse()).reverse(), beyond = leastSoFar(there).map((cost) => cost - least);
      if (there.some((cost, level) => upwards[level] + beyond[level] !== cost)) throw new RangeError("region: costs with holes");
      return [missing ? [...upwards, ...upwards.map((cost) => lower(cost, gone)), gone] : upwards, beyond];
    },
  };
}

/**
 * The intervals of an ordered feature, with one code for each. Records still have the two codes of `interval`.
 * @param {number} steps
 * @param {boolean} missing
 * @returns {Pick<Family, "largest" | "tables">}
 */
function anyInterval(steps, missing) {
  const count = ((steps + 1) * (steps + 2)) / 2;
  return {
    largest: [missing ? 2 * count : count - 1],
    tables: (costs) => {
      const there = costs.slice(0, steps + 1), gone = costs[steps + 1];
      const every = there.flatMap((_, low) => leastSoFar(there.slice(low)));
      return [missing ? [...every, ...every.map((cost) => lower(cost, gone)), gone] : every];
    },
  };
}

/** The layout of a database of regions: how a record is read, and what its codes cost. */
export class Regions {
  /** @param {import("./schema.js").Schema} schema @param {boolean} intervals whether each interval has a code of its own */
  constructor(schema, intervals) {
    this.features = schema.costed;
    this.families = this.features.map((f) => (f.ordered ? interval(f.steps, f.missing === "level") : subsets(f.largest + 1)));
    this.scanned = this.features.map((f, j) => (f.ordered && intervals ? anyInterval(f.steps, f.missing === "level") : this.families[j]));
    const together = this.scanned.reduce((n, { largest }) => n + largest.reduce((a, b) => a + b + 1, 0), 0);
    if (together > MOST_LEVELS_TOGETHER || [...this.families, ...this.scanned].some(({ largest }) => Math.max(...largest) >= MOST_CODES)) throw new RangeError("region: too many sets of levels");
    this.widths = this.families.flatMap(({ largest }) => largest.map((most) => (most < 2 ** 16 ? 2 : 4)));
  }

  get recordBytes() {
    return this.widths.reduce((a, b) => a + b, 0);
  }

  /** Read a record: the set of levels of each feature. @param {import("./wire.js").Bytes} bytes */
  read(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    const codes = this.widths.map((width) => {
      at += width;
      return width === 2 ? view.getUint16(at - width, true) : view.getUint32(at - width, true);
    });
    const left = [...codes];
    const members = this.families.map((family) => {
      const own = left.splice(0, family.largest.length);
      if (own.some((code, i) => code > family.largest[i])) throw new RangeError("region: no such set");
      return family.members(own);
    });
    return { codes, members };
  }

  /** Return the cost of every code of every column, from the costs of levels. @param {bigint[][]} tables */
  tables(tables) {
    return this.scanned.flatMap((family, j) => family.tables(tables[j]));
  }

  /**
   * Return the levels in a region that cost the least: one's own if it can be, else the nearest to it.
   * @param {bigint[][]} tables
   * @param {Levels} own
   * @param {Members[]} members
   * @returns {Levels}
   */
  nearest(tables, own, members) {
    return new Map(this.features.map((f, j) => {
      const inside = upTo(f.largest + 1).filter((level) => members[j][level]), from = levelOf(own, f);
      const least = inside.map((level) => tables[j][level]).reduce(lower);
      const best = inside.filter((level) => tables[j][level] === least);
      return [f, best.reduce((a, b) => (Math.abs(b - from) < Math.abs(a - from) ? b : a))];
    }));
  }
}

/**
 * Say which values are in a set. Whatever is said to be inside is inside, rounding included.
 * @param {Feature} f
 * @param {Members} members
 */
export function words(f, members) {
  const there = upTo(f.steps + 1).filter((level) => members[level]), gone = members[f.steps + 1] === true;
  if (!there.length) return f.show(null);
  if (there.length > f.steps) return f.missing === "level" && !gone ? WORDS.sets.given : WORDS.sets.anything;
  return saidOf(f, there, gone);
}

/**
 * Say which condition of a region a person's own value does not meet; nothing if it meets all. Nothing is certified beyond the schema's range.
 * @param {Feature} f
 * @param {Members} members
 * @param {import("./schema.js").Value} value
 */
export function unmet(f, members, value) {
  if (!members[f.code(value)]) return words(f, members);
  if (f.kind !== "numeric" || value === null) return "";
  return Number(value) > f.high ? WORDS.sets.most(f.show(f.high)) : Number(value) < f.low ? WORDS.sets.least(f.show(f.low)) : "";
}

/** @param {Feature} f @param {number[]} there some of its levels, and not all @param {boolean} gone */
function saidOf(f, there, gone) {
  const said = f.ordered ? between(f, there[0], there[there.length - 1]) : listed(f, there);
  return gone ? WORDS.sets.either([said, f.show(null)]) : said;
}

/** @param {Feature} f @param {number} low @param {number} high */
function between(f, low, high) {
  if (low === high) return bound(f, low);
  if (low === 0) return WORDS.sets.most(bound(f, high));
  if (high === f.steps) return WORDS.sets.least(bound(f, low));
  const from = bound(f, low), unit = f.unit ? ` ${f.unit}` : "";
  return WORDS.sets.between(unit && from.endsWith(unit) ? from.slice(0, -unit.length) : from, bound(f, high));
}

/** @param {Feature} f @param {number[]} there */
function listed(f, there) {
  const out = upTo(f.steps + 1).filter((level) => !there.includes(level));
  const few = there.length <= out.length + 1 ? there : out, said = WORDS.sets.either(few.map((level) => f.show(f.value(level))));
  return few === there ? said : WORDS.sets.but(said);
}

/**
 * Write a level's value so that what is written falls into the level too, with as many digits as that takes.
 * @param {Feature} f
 * @param {number} code
 */
function bound(f, code) {
  const value = f.value(code), shown = f.show(value);
  if (f.kind !== "numeric") return shown;
  const number = f.figures(Number(value), "en").replaceAll(",", ""), exact = Number(Number(value).toPrecision(15));
  const written = number.endsWith("%") ? Number(number.slice(0, -1)) / 100 : Number(number);
  if (number !== "" && !Number.isNaN(written) && f.code(written) === code) return shown;
  return `${SPOKEN === "en" ? exact : exact.toLocaleString(SPOKEN, { maximumSignificantDigits: 15, useGrouping: false })} ${f.unit}`.trim();
}
