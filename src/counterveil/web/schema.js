// Features: value to level and back, and how values are written. The same levels as the Python side, to the bit.

export function rint(x) {
  const near = Math.round(x);
  return Math.abs(x % 1) === 0.5 && near % 2 ? near - 1 : near; // halves to the even one
}

const GIVEN = { label: "", role: "feature", missing: "refuse", unit: "", format: "", log: false, levels: null, step: null, encoding: "mismatch" };

export class Feature {
  constructor(raw) {
    Object.assign(this, GIVEN, raw);
    if (this.kind === "boolean") this.values = [false, true];
    this.ordered = this.kind !== "categorical";
    this.title = this.label || this.name.replaceAll("_", " ");
    this.steps = this.kind === "numeric" ? this.levels ?? Math.round((this.high - this.low) / this.step) : Math.max(1, this.values.length - 1);
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
    return Math.max(0, 1 - Math.floor(Math.log10(width)));
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
    this.features = raw.feature.map((feature) => new Feature(feature));
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
