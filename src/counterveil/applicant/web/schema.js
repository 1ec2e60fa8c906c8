// Features: turn a value into a level and back, and show it. The levels are exactly those that Python computes.

import { CHANGES, ENCODINGS, FARTHEST, FEATURE_DEFAULTS, FEATURE_FIELDS, FORMAT_PATTERN, LANGUAGE_PATTERN, LONGEST_TEXT, MISSING, MOST_EFFORT, MOST_FEATURES, MOST_LANGUAGES, MOST_LEVELS, MOST_LEVELS_TOGETHER, ROLES } from "./constants.js";
import { inSpoken, SPOKEN, textOf, WORDS } from "./strings.js";

/**
 * @typedef {keyof typeof FEATURE_FIELDS} Kind
 * @typedef {string | number | boolean} Plain a value that a feature may list
 * @typedef {Plain | null} Value null: missing
 * @typedef {{ feature: Record<string, unknown>[] }} RawSchema as a server sent it, not checked yet
 */

/**
 * What a schema says about a feature, after the checks.
 * @typedef {object} Fields
 * @property {Kind} kind
 * @property {string} name
 * @property {Text} label
 * @property {Text} group the heading under which the page shows it
 * @property {string[] | Record<string, string[]>} labels how people read the listed values; empty: as they are
 * @property {typeof ROLES[number]} role
 * @property {typeof MISSING[number]} missing
 * @property {typeof CHANGES[number]} change how its value can change at all, for everybody who asks
 * @property {number} effort how hard that is
 * @property {boolean} override whether a person may say otherwise
 * @property {typeof ENCODINGS[number]} encoding
 * @property {Text} unit
 * @property {string} format
 * @property {boolean} log
 * @property {number} low NaN unless the feature is numeric
 * @property {number} high NaN unless the feature is numeric
 * @property {number} steps the largest level of a value that is not missing
 * @property {number[]} points the numbers of the levels, where they are listed; else empty
 * @property {Plain[]} values the listed values; empty for a numeric feature
 */

/** @typedef {import("./strings.js").Text} Text */
/** @typedef {Map<Feature, number>} Levels the level of each feature of a person or a record */

/** @param {number} x */
export function rint(x) {
  const near = Math.round(x);
  return Math.abs(x % 1) === 0.5 && near % 2 ? near - 1 : near; // a half is rounded to the even number, as in Python
}

const FORMAT = new RegExp(`^(?:${FORMAT_PATTERN})$`);
/** @type {Map<unknown, readonly string[]>} */
const FIELDS = new Map(Object.entries(FEATURE_FIELDS));

// The schema comes from a server. So all of it is checked before it is used, against the same limits as in Python.

/** @param {unknown} fine @param {string} what @returns {asserts fine} */
function check(fine, what) {
  if (!fine) throw new RangeError(`schema: ${what}`);
}

/**
 * Count characters as Python does; JavaScript counts some of them as two.
 * @type {(text: unknown) => text is string}
 */
const isText = (text) => typeof text === "string" && text.length <= 2 * LONGEST_TEXT && [...text].length <= LONGEST_TEXT;
const LANGUAGE = new RegExp(LANGUAGE_PATTERN);
/** @type {(table: unknown) => table is Record<string, unknown>} */
const isByLanguage = (table) => {
  const tags = typeof table === "object" && table !== null && !Array.isArray(table) ? Object.keys(table) : [];
  return tags.length >= 1 && tags.length <= MOST_LANGUAGES && tags.every((tag) => LANGUAGE.test(tag));
};
/** @type {(text: unknown) => text is Text} */
export const isWords = (text) => isText(text) || (isByLanguage(text) && Object.values(text).every((each) => isText(each) && each));
/** @type {(labels: unknown, count: number) => labels is Fields["labels"]} */
const areLabels = (labels, count) => {
  /** @type {(list: unknown) => boolean} */
  const fit = (list) => Array.isArray(list) && list.length === count && new Set(list).size === count && list.every((each) => isText(each) && each);
  return (Array.isArray(labels) && labels.length === 0) || fit(labels) || (isByLanguage(labels) && Object.values(labels).every(fit));
};
/** @type {(x: unknown) => x is number} */
const isReal = (x) => Number.isFinite(x);
/** @type {(x: unknown) => x is number} */
const isPositive = (x) => isReal(x) && x > 0;
/** @type {(value: unknown) => value is Plain} */
const isCategory = (value) => isText(value) || isReal(value) || typeof value === "boolean";
/** @type {<T>(value: unknown, choices: readonly T[]) => value is T} */
const isOneOf = (value, choices) => choices.some((choice) => choice === value);
/** @type {(kind: unknown) => kind is Kind} */
const isKind = (kind) => FIELDS.has(kind);

/** @param {Record<string, unknown>} raw @returns {Fields} */
function checked(raw) {
  const { kind } = raw;
  check(isKind(kind), "a kind that is unknown");
  check(Object.keys(raw).every((key) => key === "kind" || FIELDS.get(kind)?.includes(key)), "a field that is unknown");
  /** @type {Record<string, unknown>} */
  const given = { ...FEATURE_DEFAULTS, ...raw };
  const { name, label, group, labels, role, missing, unit, format, log, levels, step, encoding, values, low, high, mad, change, effort, override, points } = given;
  check(isText(name) && name && isWords(label) && isWords(unit) && isWords(group), `a name, label, unit or group that is no text or longer than ${LONGEST_TEXT} characters`);
  check(isOneOf(role, ROLES) && isOneOf(missing, MISSING), "a role or missing that is unknown");
  check(isOneOf(encoding, ENCODINGS) && typeof log === "boolean", "an encoding or log that is unknown");
  check(isOneOf(change, CHANGES) && (kind !== "categorical" || change === "any" || change === "never"), "a change that is unknown, or a direction without an order");
  check(isReal(effort) && Number.isInteger(effort) && effort >= 1 && effort <= MOST_EFFORT && typeof override === "boolean", "an effort or override that is unknown");
  const rules = { change, effort, override };
  const common = { kind, name, label, group, labels: [], role, missing, encoding, unit, log, ...rules, format: "", low: NaN, high: NaN, points: [] };
  if (kind === "boolean") return { ...common, values: [false, true], steps: 1 };
  if (kind !== "numeric") {
    check(Array.isArray(values) && values.length >= 1 && values.length <= MOST_LEVELS, `no values, or more than ${MOST_LEVELS}`);
    check(values.every(isCategory), `a value that is no finite number, and no text of up to ${LONGEST_TEXT} characters`);
    check(areLabels(labels, values.length), "labels that are not one for each value");
    return { ...common, values, labels, steps: Math.max(1, values.length - 1) };
  }
  check(typeof format === "string" && FORMAT.test(format), "a format that is none");
  check(isReal(low) && isReal(high) && low < high, "a high that is not above low");
  check(Math.max(Math.abs(low), Math.abs(high)) <= FARTHEST, `a low or high beyond ${FARTHEST}`);
  check(!log || (low > 0 && high / low > 1 && high / low < Infinity), "a low and high without logarithms");
  check([levels, step, points].filter((given) => given !== null).length === 1, "both levels and step, or neither");
  check(mad === null || isPositive(mad), "a mad that is not above 0");
  if (points !== null) {
    check(Array.isArray(points) && points.every(isReal) && !log, "points that are no numbers");
    check(points[0] === low && points.at(-1) === high && points.every((p, n) => !n || points[n - 1] < p), "points that do not rise from low to high");
    return { ...common, format, low, high, points, values: [], steps: points.length - 1 };
  }
  check(isReal(levels) ? Number.isInteger(levels) : isPositive(step) && !log, "levels or a step that is no number");
  const steps = isReal(levels) ? levels : Math.round((high - low) / Number(step));
  return { ...common, format, low, high, values: [], steps };
}

export class Feature {
  /** @param {Record<string, unknown>} raw */
  constructor(raw) {
    const fields = checked(raw);
    this.kind = fields.kind;
    this.name = fields.name;
    this.role = fields.role;
    this.missing = fields.missing;
    this.change = fields.change;
    this.effort = fields.effort;
    this.override = fields.override;
    this.encoding = fields.encoding;
    this.fields = fields;
    this.format = fields.format;
    this.log = fields.log;
    this.low = fields.low;
    this.high = fields.high;
    this.points = fields.points;
    this.values = fields.values;
    this.steps = fields.steps;
    check(this.steps >= 1 && this.steps <= MOST_LEVELS, `a feature of no levels, or of more than ${MOST_LEVELS}`);
    this.ordered = this.kind !== "categorical";
    this.largest = this.steps + (this.missing === "level" ? 1 : 0);
  }

  // what the institution says, in the language that is spoken
  get title() {
    return textOf(this.fields.label, this.name.replaceAll("_", " "));
  }

  get unit() {
    return textOf(this.fields.unit);
  }

  get group() {
    return textOf(this.fields.group);
  }

  /** @param {Value | undefined} value */
  code(value) {
    if (value === null || value === undefined || Number.isNaN(value)) {
      if (this.missing === "refuse") throw new RangeError(`${this.title}: nothing given`);
      return this.steps + 1;
    }
    if (this.kind !== "numeric") {
      const at = this.values.findIndex((v) => v === value);
      if (at < 0) throw new RangeError(`${this.title}: ${value} is not one of its values`);
      return at;
    }
    const number = Math.min(Math.max(Number(value), this.low), this.high);
    return rint(this.position(number) * this.steps);
  }

  /**
   * Return where a number lies between low (0) and high (1).
   * @param {number} number
   */
  position(number) {
    if (this.log) return Math.log(number / this.low) / Math.log(this.high / this.low);
    if (!this.points.length) return (number - this.low) / (this.high - this.low);
    const above = this.points.findIndex((point) => point > number), below = (above < 0 ? this.steps : above) - 1;
    return (below + (number - this.points[below]) / (this.points[below + 1] - this.points[below])) / this.steps;
  }

  /** @param {number} code @returns {Value} */
  value(code) {
    if (code > this.steps) return null;
    if (this.points.length) return this.points[code];
    if (this.kind !== "numeric") return this.values[Math.min(code, this.values.length - 1)];
    const part = code / this.steps;
    if (this.log) return this.low * (this.high / this.low) ** part;
    return Number((this.low + (this.high - this.low) * part).toPrecision(15));
  }

  get places() {
    const width = this.points.length ? Math.min(...this.points.slice(1).map((p, n) => p - this.points[n])) : (this.high - this.low) / this.steps;
    for (let n = 0; n < 6; n++) {
      if (Math.abs(Number(width.toFixed(n)) - width) <= 1e-9 * Math.abs(width)) return n;
    }
    return Math.min(100, Math.max(0, 1 - Math.floor(Math.log10(width)))); // JavaScript writes at most 100 decimals
  }

  /** @param {Value | undefined} value */
  show(value) {
    if (value === null || value === undefined) return WORDS.missing;
    if (this.kind === "boolean") return value ? WORDS.yes : WORDS.no;
    if (this.kind === "numeric") return `${this.figures(Number(value), SPOKEN)} ${this.unit}`.trim();
    const { labels } = this.fields, said = Array.isArray(labels) ? labels : inSpoken(labels);
    return said?.[this.values.findIndex((each) => each === value)] ?? String(value);
  }

  /** Write a number in a language, without its unit. @param {number} number @param {string} language */
  figures(number, language) {
    const fixed = /\.(\d+)f$/.exec(this.format);
    const digits = fixed ? Number(fixed[1]) : this.places;
    const own = !fixed && Math.abs(Number(number.toFixed(digits)) - number) > 1e-9 * Math.max(1, Math.abs(number));
    /** @type {Intl.NumberFormatOptions} */
    const short = Math.abs(number) < 1000 ? { maximumSignificantDigits: 4 } : { maximumFractionDigits: 0 };
    /** @type {Intl.NumberFormatOptions & { roundingMode?: string }} */
    const options = !fixed && (own || this.log) ? short : { minimumFractionDigits: digits, maximumFractionDigits: digits };
    if (this.format && !this.format.includes(",")) options.useGrouping = false;
    options.roundingMode = "halfEven"; // as in Python
    return new Intl.NumberFormat(language, options).format(number);
  }
}

export class Schema {
  /** @param {RawSchema} raw */
  constructor(raw) {
    check(Array.isArray(raw.feature) && raw.feature.length <= MOST_FEATURES, `no features, or more than ${MOST_FEATURES}`);
    this.features = raw.feature.map((feature) => new Feature(feature));
    const together = this.features.reduce((n, feature) => n + feature.largest + 1, 0);
    check(together <= MOST_LEVELS_TOGETHER, `${together} levels in all features, more than ${MOST_LEVELS_TOGETHER}`);
    this.costed = this.features.filter((feature) => feature.role === "feature");
  }

  /**
   * A record: 8-byte numbers for a row's numeric values, 2-byte levels for all else.
   * @param {import("./wire.js").RecordKind} kind
   */
  recordBytes(kind) {
    return this.features.reduce((n, f) => n + (kind === "row" && f.kind === "numeric" ? 8 : 2), 0);
  }

  /** @param {import("./wire.js").Bytes} bytes @param {import("./wire.js").RecordKind} kind */
  readRecord(bytes, kind) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    /** @type {Levels} */
    const codes = new Map();
    /** @type {Map<Feature, number>} */
    const numbers = new Map(); // a row's own
    let at = 0;
    for (const f of this.features) {
      if (kind === "row" && f.kind === "numeric") {
        const value = view.getFloat64(at, true);
        at += 8;
        codes.set(f, f.code(Number.isNaN(value) ? null : value));
        numbers.set(f, value);
      } else {
        const code = view.getUint16(at, true);
        at += 2;
        if (code > f.largest) throw new RangeError(`${f.title}: no such level`);
        codes.set(f, code);
        if (f.kind === "numeric") numbers.set(f, Number(f.value(code) ?? NaN));
      }
    }
    return { codes, numbers };
  }
}
