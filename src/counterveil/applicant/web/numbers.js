// Numbers as people write them, in the language of the page: “9.000” is nine thousand in German, and what could mean two things is refused.

/** @typedef {number | "letters" | "ambiguous" | undefined} Read what was typed: a number, no number, one that can be read in two ways, or nothing */

/** The mark before decimals. @param {string} language */
const decimalMark = (language) => new Intl.NumberFormat(language).formatToParts(1.5).find(({ type }) => type === "decimal")?.value ?? ".";

/**
 * Read a number. Groups of three digits may have dots or commas, as the language writes them, or spaces or apostrophes.
 * @param {string} text
 * @param {string} language
 * @param {string} [unit] may follow it
 * @returns {Read}
 */
export function readNumber(text, language, unit = "") {
  const trimmed = text.trim(), bare = (unit && trimmed.endsWith(unit) ? trimmed.slice(0, -unit.length) : trimmed).trim().replace(/^\u2212/, "-");
  const mark = decimalMark(language), group = mark === "," ? "." : ",";
  if (!bare) return trimmed ? "letters" : undefined;
  if (!/^[+-]?[\d.,'’\s]*\d[\d.,'’\s]*$/.test(bare)) return "letters";
  const [, sign, whole, decimals] = new RegExp(`^([+-]?)([^${mark}]*)(?:[${mark}](\\d+))?$`).exec(bare) ?? [];
  if (whole === undefined) return "ambiguous";
  const marks = new Set(whole.replace(/\d/g, "")), parts = whole.split(/[^\d]/);
  if (marks.size > 1 || (marks.size && (!/^\d{1,3}$/.test(parts[0]) || parts.slice(1).some((part) => part.length !== 3)))) return "ambiguous";
  if (decimals?.length === 3 && !marks.has(group) && /^[1-9]\d{0,2}$/.test(whole)) return "ambiguous"; // elsewhere this mark parts thousands
  return Number(`${sign}${parts.join("") || "0"}${decimals ? `.${decimals}` : ""}`);
}

/**
 * Write a number so that `readNumber` reads it again, with all its digits.
 * @param {number} number
 * @param {string} language
 * @param {boolean} useGrouping
 */
export function writtenNumber(number, language, useGrouping = true) {
  const write = (least = 0) => new Intl.NumberFormat(language, { useGrouping, minimumFractionDigits: least, maximumFractionDigits: 15 }).format(number);
  return readNumber(write(), language) === number ? write() : write(4);
}
