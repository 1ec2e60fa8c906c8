// Explain a record to the applicant. This runs after the last message, so no server can notice what happens here.

import { words } from "./boxes.js";
import { SIGNATURE_BYTES } from "./constants.js";
import { Trouble } from "./network.js";
import { allowedLevels, costTables, exactTables, levelOf, ruled, widest } from "./preferences.js";
import { unpackage } from "./spir.js";
import { concat, hex, isSigned, unhex } from "./wire.js";

/**
 * @typedef {import("./deployment.js").Deployment} Deployment
 * @typedef {import("./preferences.js").Wishes} Wishes
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Levels} Levels
 */

/**
 * @typedef {object} Change
 * @property {Feature} feature
 * @property {number} before
 * @property {number} after
 * @property {import("./schema.js").Value} value
 * @property {number} direction
 * @property {number} share the part of the whole cost
 * @property {{ words: string, members: import("./boxes.js").Members } | null} inside of a region: which values are inside
 */

/**
 * What a record means to the applicant.
 * @typedef {object} Explanation
 * @property {boolean} feasible
 * @property {Feature[]} broken
 * @property {Feature[]} fixed those of them that the institution's rules do not let change
 * @property {boolean} limited whether the person set limits that they could loosen
 * @property {{ feature: Feature, words: string }[]} kept of a region: what it asks of features that need not change
 * @property {Change[]} changes
 * @property {Levels} codes of a region: those that cost the least
 * @property {boolean} approximate whether costs were masked, so that a nearer row may exist
 * @property {{ feature: Feature, value: number }[]} outside where the record is outside the range that was asked for
 */

/** @typedef {{ record: string, signature: string }} Signed a record and its signature, in hexadecimal digits */
/** @typedef {{ explanations: Explanation[], liars: number[], signed: Signed[] }} Found the records, the nearest first, and the servers whose answers were corrected */
/** @typedef {{ codes: Levels, numbers?: Map<Feature, number>, members?: import("./boxes.js").Members[] }} Read a record: a row and its numbers; or a region, whose codes are those that cost the least */
/** @typedef {{ record: Read, each: bigint[], signed: Signed }} Costed a record, and what each feature of it costs */

/** @type {(values: bigint[]) => bigint} */
const sum = (values) => values.reduce((a, b) => a + b, 0n);

/**
 * Read a record with its signature behind it; refuse one that is not signed for this database.
 * @param {Deployment} deployment
 * @param {bigint[][]} tables
 * @param {Levels} own
 * @param {import("./wire.js").Bytes} whole
 * @returns {Promise<Costed>}
 */
async function readSigned({ terms, schema, regions }, tables, own, whole) {
  const bytes = whole.slice(0, -SIGNATURE_BYTES), signature = whole.slice(-SIGNATURE_BYTES);
  if (!(await isSigned(terms.issuer, signature, "record", unhex(terms.database), bytes))) throw new Trouble("tampered");
  /** @type {Read} */
  let record;
  try {
    const members = regions?.read(bytes).members;
    record = regions && members ? { codes: regions.nearest(tables, own, members), members } : schema.readRecord(bytes, terms.record);
  } catch {
    throw new Trouble("tampered");
  }
  return { record, each: schema.costed.map((f, j) => tables[j][levelOf(record.codes, f)]), signed: { record: hex(bytes), signature: hex(signature) } };
}

/**
 * Return the records of one run; refuse them unless each is signed for this database and has the cost that the answers gave.
 * @param {Deployment} deployment
 * @param {bigint[][]} tables
 * @param {Levels} own
 * @param {import("./protocols.js").Seen} seen
 */
async function costed(deployment, tables, own, { revealed, positions, records }) {
  const { differences } = deployment, mask = BigInt(deployment.mask - 1);
  if (deployment.fetches && !positions.length) throw new Trouble("tampered");
  /** @type {Costed[]} */
  const found = [];
  for (const packed of records) found.push(await readSigned(deployment, tables, own, await unpackage(packed)));
  if (deployment.sealed) return found;
  const costs = deployment.relative(revealed), over = found.map(({ each }, i) => costs[positions[i]] - sum(each));
  const [least, from] = differences ? [-mask, over[0]] : [0n, 0n];
  if (over.some((excess) => excess - from < least || excess - from > mask)) throw new Trouble("tampered");
  return found;
}

/** @type {(a: bigint[], b: bigint[]) => number} */
const compared = (a, b) => Number(a.map((cost, i) => cost - b[i]).find((difference) => difference) ?? 0n);

/**
 * Explain the records. Of several runs the cheapest records count. A run that gave dearer ones, or none, has a server that
 * lied or was down. If more servers must have lied than may, nothing is shown.
 * @param {Deployment} deployment
 * @param {import("./conversation.js").Conversation} conversation
 * @param {Levels} own
 * @param {Wishes} wishes
 * @returns {Promise<Found>}
 */
export async function explained(deployment, conversation, own, wishes) {
  const tables = costTables(deployment.tariff, own, wishes), outcomes = await conversation.outcomes(), found = [];
  /** @type {Trouble | null} */
  let refused = null;
  for (const { servers, seen } of outcomes) {
    if (!seen) continue;
    try {
      const records = await costed(deployment, tables, own, seen);
      found.push({ servers, seen, records, paid: records.map(({ each }) => sum(each)) });
    } catch (error) {
      if (!(error instanceof Trouble)) throw error;
      refused ??= error;
    }
  }
  if (!found.length) throw refused ?? new Trouble("tampered");
  const [cheapest] = [...found].sort((a, b) => compared(a.paid, b.paid)); // of equal ones the first
  const best = found.filter(({ paid }) => !compared(paid, cheapest.paid)).map(({ servers }) => servers);
  const wrong = outcomes.map(({ servers }) => servers).filter((servers) => !best.includes(servers));
  if (!conversation.isExplained(wrong)) throw new Trouble("too_many_liars");
  const right = outcomes.length > 1 ? best.flat() : cheapest.seen.honest.map((seat) => cheapest.servers[seat]);
  const asked = [...new Set(outcomes.flatMap(({ servers }) => servers))].sort((a, b) => a - b);
  return {
    explanations: explanationsOf(deployment, own, wishes, cheapest.records),
    liars: asked.filter((n) => !right.includes(n)),
    signed: cheapest.records.map(({ signed }) => signed),
  };
}

/**
 * Explain records that were kept, once more.
 * @param {Deployment} deployment
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Signed[]} signed
 */
export async function explainedAgain(deployment, own, wishes, signed) {
  const tables = costTables(deployment.tariff, own, wishes), found = [];
  for (const { record, signature } of signed) found.push(await readSigned(deployment, tables, own, concat(unhex(record), unhex(signature))));
  return explanationsOf(deployment, own, wishes, found);
}

/**
 * @param {Deployment} deployment
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Costed[]} found
 */
function explanationsOf(deployment, own, wishes, found) {
  const coarse = deployment.tariff.coarse || wishes.fewest, exact = exactTables(deployment.tariff, own, wishes);
  return found.map(({ record, each }) => {
    const shown = coarse ? deployment.schema.costed.map((f, j) => exact[j][levelOf(record.codes, f)]) : each.map(Number);
    return explain(deployment, own, wishes, record, shown);
  });
}

/**
 * @param {Deployment} deployment
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {Read} record
 * @param {number[]} each what each feature costs
 */
function explain(deployment, own, wishes, record, each) {
  const { schema } = deployment, { members, numbers = new Map() } = record;
  const allowed = schema.costed.map((f) => allowedLevels(f, levelOf(own, f), wishes.get(f) ?? ruled(f)));
  const broken = schema.costed.filter((f, j) => !allowed[j][levelOf(record.codes, f)]);
  const able = schema.costed.map((f) => allowedLevels(f, levelOf(own, f), widest(f)));
  const fixed = broken.filter((f) => !able[schema.costed.indexOf(f)][levelOf(record.codes, f)]);
  const limited = able.some((levels, j) => levels.some((may, code) => may && !allowed[j][code]));
  /** @type {(f: Feature, value: number) => boolean} */
  const within = (f, value) => !(value < (wishes.get(f)?.low ?? -Infinity) || value > (wishes.get(f)?.high ?? Infinity));
  const outside = [...numbers].filter(([f, value]) => f.role === "feature" && !within(f, value)).map(([feature, value]) => ({ feature, value }));
  const total = each.reduce((a, b) => a + b, 0);
  const changes = schema.costed.flatMap((feature, j) => {
    const before = levelOf(own, feature), after = levelOf(record.codes, feature);
    if (before === after) return [];
    const ordered = feature.ordered && feature.kind !== "boolean" && Math.max(before, after) <= feature.steps;
    const value = within(feature, Number(feature.value(after))) ? feature.value(after) : numbers.get(feature) ?? feature.value(after);
    const inside = members?.[j].map((may, code) => may && (code <= feature.steps || allowed[j][code])); // nobody is told to leave a value out
    return [{
      feature, before, after, value, direction: ordered ? Math.sign(after - before) : 0,
      share: total > 0 ? each[j] / total : 0, inside: inside ? { get words() { return words(feature, inside); }, members: inside } : null,
    }];
  });
  const kept = schema.costed.flatMap((feature, j) => {
    const inside = members?.[j] ?? [], isFree = inside.every((may, code) => may || !able[j][code]);
    return isFree || levelOf(own, feature) !== levelOf(record.codes, feature) ? [] : [{ feature, get words() { return words(feature, inside); } }];
  });
  changes.sort((a, b) => b.share - a.share);
  return { feasible: broken.length === 0, broken, fixed, limited, kept, changes, codes: record.codes, outside, approximate: deployment.mask > 1 };
}
