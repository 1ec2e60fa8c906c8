// What a person prefers, as a cost for every level of every feature. Private: it never leaves this computer.

import { rint } from "./schema.js";

export class Tariff {
  constructor(schema, maxWeight, dMin) {
    this.features = schema.costed;
    this.stretch = Math.max(1, ...this.features.filter((f) => f.ordered).map((f) => f.steps));
    this.unit = Math.max(this.stretch ** 2, 100);
    const twice = this.features.some((f) => f.kind === "categorical" && f.encoding === "one-hot");
    this.cap = BigInt(maxWeight) * BigInt(this.unit) * (twice ? 2n : 1n);
    this.forbidden = BigInt(this.features.length) * this.cap + BigInt(dMin);
    this.bound = BigInt(this.features.length) * this.forbidden;
  }
}

// wishes: Map from feature to { weight, change: "free" | "up" | "down" | "locked", low, high }
export function costTables(tariff, own, wishes) {
  return tariff.features.map((f) => {
    const a = own.get(f), wish = wishes.get(f) ?? {};
    const allowed = allowedLevels(f, a, wish);
    return Array.from({ length: f.largest + 1 }, (_, code) => {
      if (!allowed[code]) return tariff.forbidden;
      const exact = rint(tariff.unit * distance(f, a, code) * 1e6) / 1e6; // so that halves are halves
      return BigInt(rint(exact)) * BigInt(wish.weight ?? 1);
    });
  });
}

function distance(f, a, code) {
  const full = f.kind === "categorical" && f.encoding === "one-hot" ? 2 : 1;
  if (a > f.steps || !f.ordered) return code === a ? 0 : full;
  if (code > f.steps) return full;
  return (Math.abs(code - a) / f.steps) ** 2;
}

export function allowedLevels(f, a, wish) {
  const slack = f.kind === "numeric" ? 1e-9 * (f.high - f.low) : 0;
  return Array.from({ length: f.largest + 1 }, (_, code) => {
    if (wish.change === "locked" && code !== a) return false;
    if (f.ordered && (wish.change === "up" || wish.change === "down") && code !== a) {
      if (code > f.steps || a > f.steps || (wish.change === "up" ? code < a : code > a)) return false;
    }
    if (wish.low !== undefined || wish.high !== undefined) {
      if (code > f.steps) return false;
      const value = f.kind === "numeric" ? f.value(code) : code;
      if (wish.low !== undefined && value < wish.low - slack) return false;
      if (wish.high !== undefined && value > wish.high + slack) return false;
    }
    return true;
  });
}
