// Features: value to level and back, and how values are written. The same levels as the Python side, to the bit.

export function rint(x) {
  const near = Math.round(x);
  return Math.abs(x % 1) === 0.5 && near % 2 ? near - 1 : near; // halves to the even one
}

const GIVEN = { label: "", role: "feature", missing: "refuse", unit: "", format: "", log: false, levels: null, step: null, encoding: "mismatch" };

// A server wrote the schema: all of it is bounded as the Python side bounds it, and looked at before it is used.
const LONGEST_TEXT = 200, MOST_LEVELS = 65534, MOST_FEATURES = 10000, MOST_LEVELS_TOGETHER = 2 ** 24, FARTHEST = 1e300;
const FORMAT = /^,?(?:\.1?[0-9])?[feg%]?$/; // no width
const COMMON = ["kind", "name", "label", "role", "missing"];
const FIELDS = new Map([
  ["numeric", [...COMMON, "low", "high", "levels", "step", "unit", "format", "log", "mad"]],
  ["ordinal", [...COMMON, "values"]],
  ["categorical", [...COMMON, "values", "encoding"]],
  ["boolean", COMMON],
]);

function check(fine, what) {
  if (!fine) throw new RangeError(`schema: ${what}`);
}

// In characters as Python counts them, of which some are two of JavaScript's.
const isText = (text) => typeof text === "string" && text.length <= 2 * LONGEST_TEXT && [...text].length <= LONGEST_TEXT;
const isPositive = (x) => Number.isFinite(x) && x > 0;
const isCategory = (value) => isText(value) || Number.isFinite(value) || typeof value === "boolean";

function checkFields(raw) {
  const fields = FIELDS.get(raw.kind);
  check(fields, "a kind that is unknown");
  check(Object.keys(raw).every((key) => fields.includes(key)), "a field that is unknown");
  const { name, label, role, missing, unit, format, log, levels, step, encoding, values, low, high, mad } = { ...GIVEN, ...raw };
  check(isText(name) && name && isText(label) && isText(unit), `a name, label or unit that is no text or longer than ${LONGEST_TEXT} characters`);
  check(["feature", "record"].includes(role) && ["refuse", "level"].includes(missing), "a role or missing that is unknown");
  check(["mismatch", "one-hot"].includes(encoding) && typeof log === "boolean", "an encoding or log that is unknown");
  if (raw.kind === "numeric") {
    check(typeof format === "string" && FORMAT.test(format), "a format that is none");
    check(Number.isFinite(low) && Number.isFinite(high) && low < high, "a high that is not above low");
    check(Math.max(Math.abs(low), Math.abs(high)) <= FARTHEST, `a low or high beyond ${FARTHEST}`);
    check(!log || (low > 0 && high / low > 1 && high / low < Infinity), "a low and high without logarithms");
    check((levels === null) !== (step === null), "both levels and step, or neither");
    check(step === null ? Number.isInteger(levels) : isPositive(step) && !log, "levels or a step that is no number");
    check(mad === undefined || mad === null || isPositive(mad), "a mad that is not above 0");
  } else if (raw.kind !== "boolean") {
    check(Array.isArray(values) && values.length >= 1 && values.length <= MOST_LEVELS, `no values, or more than ${MOST_LEVELS}`);
    check(values.every(isCategory), `a value that is no finite number, and no text of up to ${LONGEST_TEXT} characters`);
  }
}

export class Feature {
  constructor(raw) {
    checkFields(raw);
    Object.assign(this, GIVEN, raw);
    if (this.kind === "boolean") this.values = [false, true];
    this.ordered = this.kind !== "categorical";
    this.title = this.label || this.name.replaceAll("_", " ");
    this.steps = this.kind === "numeric" ? this.levels ?? Math.round((this.high - this.low) / this.step) : Math.max(1, this.values.length - 1);
    check(this.steps >= 1 && this.steps <= MOST_LEVELS, `a feature of no levels, or of more than ${MOST_LEVELS}`);
    this.largest = this.steps + (this.missing === "level" ? 1 : 0);
  }

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
    const number = Math.min(Math.max(value, this.low), this.high);
    const part = this.log ? Math.log(number / this.low) / Math.log(this.high / this.low) : (number - this.low) / (this.high - this.low);
    return rint(part * this.steps);
  }

  value(code) {
    if (code > this.steps) return null;
    if (this.kind !== "numeric") return this.values[Math.min(code, this.values.length - 1)];
    const part = code / this.steps;
    if (this.log) return this.low * (this.high / this.low) ** part;
    return Number((this.low + (this.high - this.low) * part).toPrecision(15));
  }

  get places() {
    const width = (this.high - this.low) / this.steps;
    for (let n = 0; n < 6; n++) {
      if (Math.abs(Number(width.toFixed(n)) - width) <= 1e-9 * Math.abs(width)) return n;
    }
    return Math.min(100, Math.max(0, 1 - Math.floor(Math.log10(width)))); // 100 is the most that can be written
  }

  show(value) {
    if (value === null || value === undefined) return "not given";
    if (this.kind === "boolean") return value ? "yes" : "no";
    if (this.kind !== "numeric") return String(value);
    const fixed = /\.(\d+)f$/.exec(this.format);
    const digits = fixed ? Number(fixed[1]) : this.places;
    const own = !fixed && Math.abs(Number(value.toFixed(digits)) - value) > 1e-9 * Math.max(1, Math.abs(value));
    const short = Math.abs(value) < 1000 ? { maximumSignificantDigits: 4 } : { maximumFractionDigits: 0 };
    const options = !fixed && (own || this.log) ? short : { minimumFractionDigits: digits, maximumFractionDigits: digits };
    if (this.format && !this.format.includes(",")) options.useGrouping = false;
    return `${new Intl.NumberFormat("en", options).format(value)} ${this.unit}`.trim();
  }
}

export class Schema {
  constructor(raw) {
    check(Array.isArray(raw.feature) && raw.feature.length <= MOST_FEATURES, `no features, or more than ${MOST_FEATURES}`);
    this.features = raw.feature.map((feature) => new Feature(feature));
    const together = this.features.reduce((n, feature) => n + feature.largest + 1, 0);
    check(together <= MOST_LEVELS_TOGETHER, `${together} levels in all features, more than ${MOST_LEVELS_TOGETHER}`);
    this.costed = this.features.filter((feature) => feature.role === "feature");
  }

  // A record: 8-byte numbers for a row's numeric values, 2-byte levels for all else.
  recordBytes(kind) {
    return this.features.reduce((n, f) => n + (kind === "row" && f.kind === "numeric" ? 8 : 2), 0);
  }

  readRecord(bytes, kind) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const codes = new Map();
    let at = 0;
    for (const f of this.features) {
      if (kind === "row" && f.kind === "numeric") {
        const value = view.getFloat64(at, true);
        at += 8;
        codes.set(f, f.code(Number.isNaN(value) ? null : value));
      } else {
        const code = view.getUint16(at, true);
        at += 2;
        if (code > f.largest) throw new RangeError(`${f.title}: no such level`);
        codes.set(f, code);
      }
    }
    return { codes };
  }
}
