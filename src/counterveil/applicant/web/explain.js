// Explain a record to the applicant. This runs after the last message, so no server can notice what happens here.

import { SIGNATURE_BYTES } from "./constants.js";
import { Trouble } from "./network.js";
import { allowedLevels, costTables, levelOf, ruled } from "./preferences.js";
import { unpackage } from "./spir.js";
import { isSigned, unhex } from "./wire.js";

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
 */

/**
 * @typedef {object} Explanation
 * @property {boolean} feasible
 * @property {Feature[]} broken
 * @property {Change[]} changes
 * @property {Levels} codes
 * @property {boolean} approximate whether costs were masked, so that a nearer row may exist
 * @property {{ feature: Feature, value: number }[]} outside where the record is outside the range that was asked for
 * @property {number[]} liars servers whose answers were corrected
 */

/**
 * Explain the first record; refuse it unless it is signed for this database and has the cost that the answers gave.
 * @param {Deployment} deployment
 * @param {number[]} servers the servers that were asked
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {import("./protocols.js").Seen} seen
 * @returns {Promise<Explanation>}
 */
export async function explained(deployment, servers, own, wishes, { revealed, positions, records, honest }) {
  const { terms, schema } = deployment, whole = await unpackage(records[0]), bytes = whole.slice(0, -SIGNATURE_BYTES);
  const signed = await isSigned(terms.issuer, whole.slice(-SIGNATURE_BYTES), "record", unhex(terms.database), bytes);
  if (!positions.length || !signed) throw new Trouble("tampered");
  let record;
  try {
    record = schema.readRecord(bytes, terms.record);
  } catch {
    throw new Trouble("tampered");
  }
  const tables = costTables(deployment.tariff, own, wishes);
  const each = schema.costed.map((f, j) => tables[j][levelOf(record.codes, f)]);
  if (!deployment.sealed && !deployment.differences) {
    const over = deployment.relative(revealed)[positions[0]] - each.reduce((a, b) => a + b, 0n);
    if (over < 0n || over >= BigInt(deployment.mask)) throw new Trouble("tampered");
  }
  const liars = servers.filter((_, seat) => !honest.includes(seat));
  return { ...explain(deployment, own, wishes, record, each), liars };
}

/**
 * @param {Deployment} deployment
 * @param {Levels} own
 * @param {Wishes} wishes
 * @param {{ codes: Levels, numbers: Map<Feature, number> }} record
 * @param {bigint[]} each what each feature costs
 */
function explain(deployment, own, wishes, record, each) {
  const { schema } = deployment;
  const broken = schema.costed.filter((f) => !allowedLevels(f, levelOf(own, f), wishes.get(f) ?? ruled(f))[levelOf(record.codes, f)]);
  const { numbers } = record;
  /** @type {(f: Feature, value: number) => boolean} */
  const within = (f, value) => !(value < (wishes.get(f)?.low ?? -Infinity) || value > (wishes.get(f)?.high ?? Infinity));
  const outside = [...numbers].filter(([f, value]) => f.role === "feature" && !within(f, value)).map(([feature, value]) => ({ feature, value }));
  const total = each.reduce((a, b) => a + b, 0n);
  const changes = schema.costed.flatMap((feature, j) => {
    const before = levelOf(own, feature), after = levelOf(record.codes, feature);
    if (before === after) return [];
    const ordered = feature.ordered && feature.kind !== "boolean" && Math.max(before, after) <= feature.steps;
    const value = within(feature, Number(feature.value(after))) ? feature.value(after) : numbers.get(feature) ?? feature.value(after);
    return [{
      feature, before, after, value, direction: ordered ? Math.sign(after - before) : 0,
      share: total > 0n ? Number((10000n * each[j]) / total) / 10000 : 0,
    }];
  });
  changes.sort((a, b) => b.share - a.share);
  return { feasible: broken.length === 0, broken, changes, codes: record.codes, outside, approximate: deployment.mask > 1 };
}
