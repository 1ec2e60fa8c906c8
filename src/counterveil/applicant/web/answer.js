// What the page shows of an answer: the accepted cases, and the bytes that left this computer.

import { secretOf } from "./deployment.js";
import { make, picture, track } from "./elements.js";
import { shares } from "./protocols.js";
import { WORDS } from "./strings.js";
import { hex, packVector } from "./wire.js";

/**
 * @typedef {import("./explain.js").Explanation} Explanation
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 * @typedef {import("./wire.js").Bytes} Bytes
 */

/** @typedef {{ server: number, up: number, length: number, body?: Bytes, down?: Bytes | null }} Sent a message: its sizes, and the beginnings of its bytes if it went to the first server */

/** @typedef {import("./deployment.js").Deployment} Deployment */

/** @param {Deployment} deployment @param {Explanation} found @param {Map<Feature, Value>} before */
export function sentence({ regions }, found, before) {
  if (!found.feasible) return WORDS.relax(WORDS.joined(found.broken.map((f) => f.title)));
  const notes = found.outside.map(({ feature, value }) => WORDS.outside(feature.title, feature.show(value)));
  if (found.approximate) notes.push(regions ? WORDS.approximateRegion : WORDS.approximate);
  if (!found.changes.length) return [regions ? WORDS.within : WORDS.same, ...notes].join(" ");
  const parts = found.changes.map((c) => {
    if (c.inside) return WORDS.condition(c.feature.title, c.inside.words);
    const verb = c.direction > 0 ? WORDS.raise : c.direction < 0 ? WORDS.lower : WORDS.alter;
    return WORDS.changed(verb, c.feature.title, c.feature.show(before.get(c.feature)), c.feature.show(c.value));
  });
  if (regions && found.changes.length < found.codes.size) parts.push(WORDS.stays);
  const text = regions ? parts.join("; ") : WORDS.joined(parts);
  return [`${text[0].toUpperCase()}${text.slice(1)}.`, ...notes].join(" ");
}

/** @param {Explanation} found @param {Map<Feature, Value>} before */
function changesTable({ changes }, before) {
  const head = make("tr", {}, ...[WORDS.feature, WORDS.now, WORDS.after].map((t) => make("th", { scope: "col" }, t)));
  const rows = changes.map((c) => {
    const bar = make("div", { className: "bar", role: "img", "aria-label": WORDS.share(Math.round(100 * c.share)) });
    bar.style.width = `${Math.max(2, 100 * c.share)}%`;
    return make("tr", {}, make("th", { scope: "row" }, c.feature.title, bar), make("td", {}, c.feature.show(before.get(c.feature))),
      make("td", { className: "after" }, c.inside?.words ?? c.feature.show(c.value), ...(c.inside ? [track(c.inside.members, c.before, c.after)] : [])));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

/**
 * Return the accepted cases, the nearest first. Of those after the first, only the ones that fit the person's limits are shown.
 * @param {Deployment} deployment
 * @param {import("./explain.js").Found} found
 * @param {Map<Feature, Value>} before
 */
export function answerCard(deployment, { explanations, liars }, before) {
  const { certificate } = deployment, [first, ...others] = explanations, fitting = others.filter((each) => each.feasible);
  const [near, nearly] = certificate ? [WORDS.region, WORDS.regionNearly] : [WORDS.answer, WORDS.nearly];
  const title = first.approximate ? nearly : near;
  const box = make("div", { className: "card" }, make("h2", {}, first.feasible ? title : WORDS.nothing));
  for (const [i, each] of [first, ...fitting].entries()) {
    if (i) box.append(make("h3", {}, WORDS.next(i + 1)));
    box.append(make("p", { className: "sentence", ...(i ? {} : { id: "sentence" }) }, sentence(deployment, each, before)));
    if (each.feasible && each.changes.length) box.append(changesTable(each, before));
  }
  const below = certificate ? WORDS.bands : WORDS.unchanged;
  if (first.feasible && first.changes.length) box.append(make("p", { className: "soft" }, `${WORDS.bars} ${below}`));
  if (first.feasible && fitting.length < others.length) box.append(make("p", {}, WORDS.noOthers));
  if (first.feasible && certificate) box.append(make("p", { className: "soft", id: "certificate" }, WORDS.certified(certificate)));
  if (liars.length) box.append(make("p", {}, WORDS.lied(liars.join(", "))));
  return box;
}

/**
 * Return the bytes to the first server, beside a new share of the same question for it, and never the bytes to two servers.
 * @param {import("./client.js").Session} session
 * @param {Sent[]} messages
 * @param {import("./schema.js").Levels} own
 * @param {import("./preferences.js").Wishes} wishes
 */
export function leftCard({ deployment, peers }, messages, own, wishes) {
  const asked = [...new Set(messages.map((m) => m.server))].sort((a, b) => a - b), [first] = asked;
  const payload = packVector(shares(deployment, asked, secretOf(deployment, own, wishes))[0], deployment.q);
  const box = make("div", { className: "card" }, make("h2", {}, WORDS.left), make("p", {}, WORDS.leftLead(first)), make("p", {}, WORDS.leftWhy));
  const pair = make("div", { className: "noise" });
  const mine = messages.filter((m) => m.server === first), seen = mine[0].body?.slice(0, payload.length) ?? new Uint8Array();
  for (const [title, bytes] of /** @type {const} */ ([[WORDS.seen(first), seen], [WORDS.otherwise(first), payload]])) {
    pair.append(make("div", {}, make("p", { className: "soft" }, title), picture(bytes, title), make("code", {}, `${hex(bytes.slice(0, 72))}…`)));
  }
  for (const server of asked) {
    const all = messages.filter((m) => m.server === server);
    const up = all.reduce((n, m) => n + m.up, 0), down = all.reduce((n, m) => n + m.length, 0);
    box.append(make("h3", {}, WORDS.sent(WORDS.server(server, peers.get(server) ?? ""), up, down)));
    if (server !== first) continue;
    box.append(pair, ...mine.map((m, n) => {
      const details = make("details", {}, make("summary", {}, WORDS.message(n + 1, m.up, m.length)));
      for (const [title, bytes] of /** @type {const} */ ([[WORDS.up(m.body?.length ?? 0), m.body ?? []], [WORDS.down(m.down?.length ?? 0), m.down ?? []]]))
        details.append(make("p", { className: "soft" }, title), make("code", {}, hex(bytes)));
      return details;
    }));
  }
  return box;
}
