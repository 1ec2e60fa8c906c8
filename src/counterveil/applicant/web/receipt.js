// Receipts: what an institution signed of an answer, in one file that anybody can check without asking a server. All but
// the signed parts, the date and the person's values follows from these. So a receipt is checked by making it anew: the
// bytes must be the same. Python makes the same bytes.

import { Regions, unmet } from "./boxes.js";
import { areNames, isHex, signedBeside } from "./manifests.js";
import { DOES_NOT_PROVE, MOST_RECORDS, PROTOCOL, PROVES, PUBLIC_KEY_BYTES, RECEIPT, RECEIPT_DAY, RECEIPT_DIGITS, RECEIPT_LIMIT, RECORD_KINDS, SIGNATURE_BYTES } from "./constants.js";
import { levelOf } from "./preferences.js";
import { Schema } from "./schema.js";
import { digestOf, hex, isSigned, unhex } from "./wire.js";

/**
 * @typedef {import("./explain.js").Signed} Signed
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 * @typedef {import("./wire.js").SignedTerms} SignedTerms
 * @typedef {import("./wire.js").Terms} Terms
 * @typedef {Record<string, Value>} Values a person's values, by feature
 */

/** @typedef {{ codes?: import("./schema.js").Levels, numbers?: Map<Feature, number>, members?: import("./boxes.js").Members[] }} Opened a record: a row's levels and numbers, or a region's sets of levels */
/** @typedef {{ text: string, date: string, question: Values | null, terms: Terms, schema: Schema, records: Opened[] }} Verified a receipt that was checked */

/** What is wrong with a receipt: the part that is not as it should be. */
export class BadReceipt extends Error {}

/** @param {unknown} fine @param {string} part @returns {asserts fine} */
function holds(fine, part) {
  if (!fine) throw new BadReceipt(part);
}

/**
 * Write JSON with an indent of 1, and keys in order.
 * @param {unknown} value
 * @returns {string}
 */
function writtenReceipt(value, depth = 0) {
  const line = `\n${" ".repeat(depth)}`;
  /** @type {(parts: string[], ends: string) => string} */
  const joined = (parts, ends) => (parts.length ? `${ends[0]}${line} ${parts.join(`,${line} `)}${line}${ends[1]}` : ends);
  if (Array.isArray(value)) return joined(value.map((each) => writtenReceipt(each, depth + 1)), "[]");
  if (typeof value === "object" && value !== null) {
    const parts = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, each]) => `${JSON.stringify(name)}: ${writtenReceipt(each, depth + 1)}`);
    return joined(parts, "{}");
  }
  holds(typeof value !== "number" || Number.isFinite(value), "numbers");
  return JSON.stringify(value);
}

/**
 * Return the value of a level; a number with the digits that JavaScript and Python agree on.
 * @param {Feature} f
 * @param {number} level
 */
function levelValue(f, level) {
  const value = f.value(level);
  return f.kind === "numeric" && value !== null ? Number(Number(value).toPrecision(RECEIPT_DIGITS)) : value;
}

/** @param {Schema} schema @param {Terms["record"]} kind @param {import("./wire.js").Bytes} bytes @returns {Opened} */
function openedRecord(schema, kind, bytes) {
  const regions = kind === "region" ? new Regions(schema, false) : null;
  holds(bytes.length === (regions?.recordBytes ?? schema.recordBytes(kind)), "record");
  try {
    return regions ? { members: regions.read(bytes).members } : schema.readRecord(bytes, kind);
  } catch {
    throw new BadReceipt("record");
  }
}

/**
 * Return what a record says: a value for each feature, or of a region's features both ends of an interval or all values.
 * @param {Schema} schema
 * @param {Terms["record"]} kind
 * @param {Opened} opened
 */
function acceptedBy(schema, kind, { members, codes = new Map(), numbers = new Map() }) {
  if (!members) {
    return Object.fromEntries(schema.features.map((f) => {
      const own = kind === "row" ? numbers.get(f) : undefined; // numbers of a row are its own
      return [f.name, own === undefined ? levelValue(f, levelOf(codes, f)) : Number.isNaN(own) ? null : own];
    }));
  }
  return Object.fromEntries(schema.costed.map((f, j) => {
    const levels = members[j].flatMap((may, level) => (may ? level : [])), there = levels.filter((level) => level <= f.steps);
    const ends = f.ordered && there.length ? [there[0], there[there.length - 1]] : there;
    return [f.name, [...ends, ...levels.slice(there.length)].map((level) => levelValue(f, level))];
  }));
}

/** @type {(f: Feature, value: unknown) => value is Value} */
const isValueOf = (f, value) => (value === null ? f.missing === "level" : f.kind === "numeric" ? Number.isFinite(value) : f.values.some((each) => each === value));

/**
 * Return the features in which a record is otherwise than a person's values.
 * @param {Schema} schema
 * @param {Opened} opened
 * @param {Values} values
 */
export function changedIn(schema, { members, codes = new Map() }, values) {
  return schema.costed.filter((f, j) => (members ? unmet(f, members[j], values[f.name]) : f.code(values[f.name]) !== levelOf(codes, f)));
}

/** @param {string} date */
function isDay(date) {
  const time = new RegExp(RECEIPT_DAY).test(date) ? Date.parse(`${date}T00:00:00Z`) : NaN;
  return !Number.isNaN(time) && new Date(time).toISOString().startsWith(date);
}

/**
 * Make a receipt. The date is the person's word; `values` are their own, or null.
 * @param {SignedTerms} issued
 * @param {Signed[]} signed
 * @param {string} date
 * @param {Values | null} values
 */
export async function makeReceipt({ terms: text, addresses, signature, names }, signed, date, values) {
  /** @type {Terms} */
  const terms = JSON.parse(text);
  const schema = new Schema(terms.schema);
  holds(isDay(date), "date");
  holds(new Set(signed.map((each) => each.record + each.signature)).size === signed.length, "answers");
  if (values) {
    const names = Object.keys(values);
    holds(names.length === schema.costed.length && schema.costed.every((f) => Object.hasOwn(values, f.name) && isValueOf(f, values[f.name])), "question");
  }
  const answers = signed.map((each) => {
    const opened = openedRecord(schema, terms.record, unhex(each.record));
    const changes = values ? { changes: changedIn(schema, opened, values).map((f) => f.name) } : {};
    return { record: each.record, signature: each.signature, accepted: acceptedBy(schema, terms.record, opened), ...changes };
  });
  const body = {
    receipt: RECEIPT, about: { does_not_prove: DOES_NOT_PROVE, proves: PROVES }, answers, date, terms: { terms: text, addresses, signature, ...(names ? { names } : {}) },
    terms_digest: hex(await digestOf(text)), ...(values ? { question: values } : {}),
  };
  return `${writtenReceipt({ ...body, check: hex(await digestOf(writtenReceipt(body))) })}\n`;
}

/**
 * Check a receipt; refuse one in which a byte is wrong. Whose key signed it is for the caller to say: `terms.issuer`.
 * @param {import("./wire.js").Bytes} bytes
 * @returns {Promise<Verified>}
 */
export async function readReceipt(bytes) {
  holds(bytes.length <= RECEIPT_LIMIT, "size");
  let text, read;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    read = JSON.parse(text);
  } catch {
    throw new BadReceipt("file");
  }
  const { receipt, answers, date, terms: issued, question } = Object(read), { terms: said, addresses, signature, names } = Object(issued);
  holds(receipt === RECEIPT, "version");
  holds(typeof said === "string" && isHex(signature, SIGNATURE_BYTES) && Array.isArray(addresses) && addresses.every((each) => typeof each === "string") && areNames(names, addresses.length), "terms");
  holds(typeof date === "string" && (question === undefined || (typeof question === "object" && question !== null && !Array.isArray(question))), "question");
  const whole = Array.isArray(answers) && answers.length >= 1 && answers.length <= MOST_RECORDS
    && answers.every((each) => typeof each?.record === "string" && isHex(each.record, Math.floor(each.record.length / 2)) && isHex(each.signature, SIGNATURE_BYTES));
  holds(whole, "answers");
  try {
    /** @type {Terms} */
    const terms = JSON.parse(said);
    holds(terms.version === PROTOCOL && isHex(terms.issuer, PUBLIC_KEY_BYTES) && isHex(terms.database, 32) && RECORD_KINDS.includes(terms.record), "terms");
    holds(await isSigned(terms.issuer, unhex(signature), "terms", await digestOf(said), ...signedBeside(issued)), "signature");
    /** @type {Signed[]} */
    const signed = answers;
    for (const each of signed) holds(await isSigned(terms.issuer, unhex(each.signature), "record", unhex(terms.database), unhex(each.record)), "signature");
    const schema = new Schema(terms.schema);
    holds(await makeReceipt(issued, signed, date, question ?? null) === text, "content");
    return { text, date, question: question ?? null, terms, schema, records: signed.map((each) => openedRecord(schema, terms.record, unhex(each.record))) };
  } catch (error) {
    throw error instanceof BadReceipt ? error : new BadReceipt("terms");
  }
}
