// A place in the page where anybody can check a receipt. Nothing is sent: the file stays on this computer.

import { unmet, words } from "./boxes.js";
import { make } from "./elements.js";
import { BadReceipt, changedIn, readReceipt } from "./receipt.js";
import { capital, dayShown, WORDS } from "./strings.js";
import { fingerprint } from "./wire.js";

/** @typedef {import("./receipt.js").Verified} Verified */

/** @param {Verified} found @param {import("./receipt.js").Opened} record */
function recordTable({ schema, question, terms }, { members, codes, numbers }, caption = "") {
  const changed = question ? changedIn(schema, { members, codes }, question) : [];
  const heads = [WORDS.feature, ...(question ? [WORDS.check.theirs] : []), WORDS.after];
  const rows = (members ? schema.costed : schema.features).map((f, j) => {
    const own = terms.record === "row" ? numbers?.get(f) : undefined;
    const said = members ? (question && unmet(f, members[j], question[f.name])) || words(f, members[j]) : f.show(own ?? f.value(codes?.get(f) ?? 0));
    const theirs = question ? [make("td", {}, Object.hasOwn(question, f.name) ? f.show(question[f.name]) : "")] : [];
    return make("tr", {}, make("th", { scope: "row" }, capital(f.title)), ...theirs, make("td", { className: changed.includes(f) ? "after" : "" }, said));
  });
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  return make("table", {}, ...(caption ? [make("caption", {}, caption)] : []), make("thead", {}, head), make("tbody", {}, ...rows));
}

/** @param {Verified} found @param {string} issuer the key that the page trusts */
async function verifiedCard(found, issuer) {
  const { terms, date, records } = found, isOurs = terms.issuer === issuer;
  const card = make("div", { className: "card", id: "checked" }, make("h3", {}, isOurs ? WORDS.check.right : WORDS.check.rightOther), make("p", {}, isOurs ? WORDS.check.ours : WORDS.check.others));
  card.dataset.result = isOurs ? "ours" : "another key";
  card.append(make("p", {}, `${WORDS.check.key} `, make("code", {}, await fingerprint(terms.issuer))), make("p", {}, WORDS.check.date(dayShown(date))));
  for (const [i, record] of records.entries()) card.append(recordTable(found, record, records.length > 1 ? WORDS.check.place(i + 1, records.length) : ""));
  if (found.question) card.append(make("p", { className: "soft" }, WORDS.check.bold));
  for (const [heading, lines] of /** @type {const} */ ([[WORDS.check.proves, WORDS.check.provesList], [WORDS.check.not, WORDS.check.notList]]))
    card.append(make("h4", {}, heading), make("ul", {}, ...lines.map((line) => make("li", {}, line))));
  return card;
}

/**
 * Return the section in which a receipt can be checked.
 * @param {string} issuer the key that the page trusts
 */
export function checkingSection(issuer) {
  const input = make("input", { type: "file", id: "receipt-file", accept: ".json,application/json" }), result = make("div", { role: "status" });
  input.onchange = async () => {
    const [file] = input.files ?? [];
    if (!file) return;
    try {
      result.replaceChildren(await verifiedCard(await readReceipt(new Uint8Array(await file.arrayBuffer())), issuer));
    } catch (error) {
      const part = error instanceof BadReceipt ? error.message : "file";
      const card = make("div", { className: "card trouble", id: "checked" }, make("h3", {}, WORDS.check.wrong), make("p", {}, ["file", "size", "version"].includes(part) ? WORDS.check.noReceipt : WORDS.check.altered));
      card.dataset.result = part;
      result.replaceChildren(card);
    }
    input.value = ""; // the same file can be chosen again
  };
  return make("section", { id: "checking" }, make("details", {}, make("summary", {}, WORDS.check.title),
    make("p", { className: "soft" }, WORDS.check.lead), make("label", { htmlFor: input.id }, WORDS.check.file), input, result));
}
