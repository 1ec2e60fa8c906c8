// What the page shows of an answer: the accepted cases, and the bytes that left this computer.

import { calledAt } from "./manifests.js";
import { secretOf } from "./deployment.js";
import { make, picture, track } from "./elements.js";
import { shares } from "./protocols.js";
import { capital, dayShown, WORDS } from "./strings.js";
import { hex, packVector } from "./wire.js";

/**
 * @typedef {import("./explain.js").Explanation} Explanation
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 * @typedef {import("./wire.js").Bytes} Bytes
 */

/** @typedef {{ server: number, up: number, length: number, body?: Bytes, down?: Bytes | null }} Sent a message: its sizes, and the beginnings of its bytes if it went to the first server */

/** @typedef {import("./deployment.js").Deployment} Deployment */

/** Say why nothing fits: because of the person's own limits, or of rules that they cannot change. @param {Explanation} found */
function unfitting({ broken, fixed, limited }) {
  /** @type {(features: Feature[]) => string} */
  const named = (features) => WORDS.joined(features.map((f) => f.title));
  const own = broken.filter((f) => !fixed.includes(f));
  return [...(fixed.length ? [WORDS.ruledOut(named(fixed), limited)] : []), ...(own.length ? [WORDS.relax(named(own))] : [])].join(" ");
}

/** Say what a region asks of a feature, in a table. A single level of numbers stands for all that are rounded to it. @param {import("./explain.js").Change} change */
function accepted({ feature: f, inside, value, after }) {
  if (!inside) return f.show(value);
  if (f.kind !== "numeric" || inside.members.some((may, code) => may !== (code === after))) return inside.words;
  const isWide = f.log || f.points.length > 0 || (f.high - f.low) / f.steps > 10 ** -f.places * (1 + 1e-9);
  return isWide ? WORDS.sets.about(inside.words) : WORDS.sets.exactly(inside.words);
}

/** Say what must stay within limits for an answer to hold. @param {Explanation} found */
const keptWords = ({ kept }) => kept.map(({ feature, words }) => WORDS.condition(capital(feature.title), words));

/** @param {Deployment} deployment @param {Explanation} found @param {Map<Feature, Value>} before */
export function sentence({ regions }, found, before) {
  if (!found.feasible) return unfitting(found);
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
  return [`${capital(text)}.`, ...notes].join(" ");
}

/** @param {Explanation} found @param {Map<Feature, Value>} before */
function changesTable({ changes }, before) {
  const head = make("tr", {}, ...[WORDS.feature, WORDS.now, WORDS.after].map((t) => make("th", { scope: "col" }, t)));
  const rows = changes.map((c) => {
    const bar = make("div", { className: "bar", role: "img", "aria-label": WORDS.share(Math.round(100 * c.share)) });
    bar.style.width = `${Math.max(2, 100 * c.share)}%`;
    return make("tr", {}, make("th", { scope: "row" }, capital(c.feature.title), bar), make("td", {}, c.feature.show(before.get(c.feature))),
      make("td", { className: "after" }, accepted(c), ...(c.inside ? [track(c.inside.members, c.before, c.after)] : [])));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

/** @typedef {Pick<import("./kept.js").Item, "number" | "date" | "missing" | "unlike" | "issued">} Label which answer of the tab it is, of which day, which servers were not needed, and which answer it should differ from (0: none) */

/** Say what an answer says that is not the first of several. @param {Deployment} deployment @param {Explanation} each @param {Map<Feature, Value>} before */
const placeSentence = (deployment, each, before) => (each.feasible ? sentence(deployment, each, before) : WORDS.beyond(WORDS.joined(each.broken.map((f) => f.title))));

/**
 * Return the accepted cases, the nearest first, all that came.
 * @param {Deployment} deployment
 * @param {import("./explain.js").Found} found
 * @param {Map<Feature, Value>} before
 * @param {Label} label
 */
export function answerCard(deployment, { explanations, liars }, before, { number, date, missing, unlike, issued }) {
  const { certificate } = deployment, [first, ...others] = explanations;
  const [near, nearly] = certificate ? [WORDS.region, WORDS.regionNearly] : [WORDS.answer, WORDS.nearly];
  const title = first.approximate ? nearly : near;
  const box = make("div", { className: "card" }, make("h2", {}, first.feasible ? title : first.fixed.length && !first.limited ? WORDS.nothingAtAll : WORDS.nothing));
  box.prepend(make("p", { className: "soft number" }, WORDS.kept.title(number, dayShown(date), unlike)));
  for (const [i, each] of [first, ...(first.feasible ? others : [])].entries()) {
    if (i) box.append(make("h3", {}, WORDS.next(i + 1)));
    box.append(make("p", { className: "sentence", ...(i ? {} : { id: "sentence" }) }, i ? placeSentence(deployment, each, before) : sentence(deployment, each, before)));
    if ((i || each.feasible) && each.changes.length) box.append(changesTable(each, before));
  }
  const below = certificate ? WORDS.bands : WORDS.unchanged;
  if (first.feasible && first.changes.length) box.append(make("p", { className: "soft" }, `${WORDS.bars} ${below}`));
  if (first.feasible && first.kept.length) box.append(make("details", { className: "kept" }, make("summary", {}, WORDS.keep), make("ul", {}, ...keptWords(first).map((line) => make("li", {}, line)))));
  if (first.feasible) box.append(make("p", { className: "promise" }, WORDS.noPromise));
  if (first.feasible && certificate) box.append(make("p", { className: "soft" }, WORDS.proven(certificate)), make("details", { className: "certificate" }, make("summary", {}, WORDS.details), make("p", { className: "soft", id: "certificate" }, WORDS.certified(certificate))));
  if (liars.length) box.append(make("p", {}, WORDS.lied(liars.join(", "))));
  if (missing.length) box.append(make("p", {}, WORDS.spared(WORDS.joined(missing.map((url) => calledAt({ issued }, url))))));
  return box;
}

/**
 * Return an answer as text, for a file or a letter.
 * @param {Deployment} deployment
 * @param {import("./explain.js").Found} found
 * @param {Map<Feature, Value>} before
 * @param {Label} label
 */
export function answerText(deployment, { explanations }, before, { number, date, unlike }) {
  const { certificate, terms } = deployment, [first] = explanations;
  const lines = [`${WORDS.kept.title(number, dayShown(date), unlike)} (${terms.service})`];
  for (const [i, each] of (first.feasible ? explanations : [first]).entries()) {
    lines.push("", ...(i ? [WORDS.next(i + 1), placeSentence(deployment, each, before)] : [sentence(deployment, each, before)]));
    if (i || each.feasible) lines.push(...each.changes.map((c) => `- ${c.feature.title}: ${c.feature.show(before.get(c.feature))} → ${accepted(c)}`));
  }
  if (first.feasible && first.kept.length) lines.push("", WORDS.keep, ...keptWords(first).map((line) => `- ${line}`));
  if (first.feasible) lines.push("", WORDS.noPromise);
  if (first.feasible && certificate) lines.push("", `${WORDS.proven(certificate)} ${WORDS.certified(certificate)}`);
  return `${lines.join("\n")}\n`;
}

/** @typedef {{ number: number, before: Map<Feature, Value>, explanations: Explanation[] }} Compared answers to one person, under the same terms */

/**
 * Return a table of answers side by side, one column an answer; nothing if there is only one.
 * @param {Compared[]} answers the oldest first
 */
export function comparison(answers) {
  const columns = answers.flatMap(({ number, before, explanations }) => explanations.flatMap((each, place) => (each.feasible ? { name: WORDS.kept.column(number, place + 1), before, each } : [])));
  if (columns.length < 2) return [];
  /** @type {(each: Explanation, name: string) => import("./explain.js").Change | undefined} */
  const changeOf = (each, name) => each.changes.find((c) => c.feature.name === name); // answers that were kept have features of their own
  const [{ before }] = columns.slice(-1), rows = [...before].filter(([f]) => columns.some(({ each }) => changeOf(each, f.name)));
  const head = make("tr", {}, ...[WORDS.feature, WORDS.kept.yours, ...columns.map(({ name }) => name)].map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map(([f, value]) => make("tr", {}, make("th", { scope: "row" }, capital(f.title)), make("td", {}, f.show(value)), ...columns.map(({ each }) => {
    const change = changeOf(each, f.name);
    return change ? make("td", { className: "after" }, accepted(change)) : make("td", { className: "soft" }, WORDS.kept.same);
  })));
  const table = make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": WORDS.kept.beside }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  return [make("div", { className: "card", id: "beside" }, make("h2", {}, WORDS.kept.beside), table, make("p", { className: "soft" }, WORDS.kept.besideNote))];
}

/**
 * Return the bytes to the first server, beside a new share of the same question for it, and never the bytes to two servers.
 * @param {import("./client.js").Session} session
 * @param {Sent[]} messages
 * @param {import("./schema.js").Levels} own
 * @param {import("./preferences.js").Wishes} wishes
 * @param {(url: string) => string} called names who runs a server
 */
export function leftCard({ deployment, peers }, messages, own, wishes, called) {
  const asked = [...new Set(messages.map((m) => m.server))].sort((a, b) => a - b), [first] = asked;
  const payload = packVector(shares(deployment, asked, secretOf(deployment, own, wishes))[0], deployment.q);
  const box = make("details", { className: "card" }, make("summary", {}, WORDS.left), make("p", {}, WORDS.leftLead(first)), make("p", {}, WORDS.leftWhy));
  const pair = make("div", { className: "noise" });
  const mine = messages.filter((m) => m.server === first), seen = mine[0].body?.slice(0, payload.length) ?? new Uint8Array();
  for (const [title, bytes] of /** @type {const} */ ([[WORDS.seen(first), seen], [WORDS.otherwise(first), payload]])) {
    pair.append(make("div", {}, make("p", { className: "soft" }, title), picture(bytes, title), make("code", {}, `${hex(bytes.slice(0, 72))}…`)));
  }
  for (const server of asked) {
    const all = messages.filter((m) => m.server === server);
    const up = all.reduce((n, m) => n + m.up, 0), down = all.reduce((n, m) => n + m.length, 0);
    box.append(make("h3", {}, WORDS.sent(WORDS.server(server, called(peers.get(server) ?? "")), up, down)));
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
