// The words of the page in the language that is spoken. Each language has a file in strings/, with the same keys.

import { GERMAN } from "./strings/de.js";
import { ENGLISH } from "./strings/en.js";
import { SPANISH } from "./strings/es.js";
import { FRENCH } from "./strings/fr.js";

/** @typedef {typeof ENGLISH} Words */
/** @typedef {string | Record<string, string>} Text a text of the institution's, or a table of it by language */

/** @type {Record<string, Words>} */
export const LANGUAGES = { en: ENGLISH, de: GERMAN, fr: FRENCH, es: SPANISH };
export let WORDS = ENGLISH;
export let SPOKEN = "en";

/** Speak a language from now on. @param {string} tag */
export function speak(tag) {
  SPOKEN = Object.hasOwn(LANGUAGES, tag) ? tag : "en";
  WORDS = LANGUAGES[SPOKEN];
}

/**
 * Return the first of a person's languages that the page speaks.
 * @param {readonly string[]} tags
 */
export const firstSpoken = (tags) => tags.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => Object.hasOwn(LANGUAGES, tag)) ?? "en";

const SPEECH = "counterveil language"; // where this tab keeps the language that was chosen, until it is closed

/** Return the language that was chosen in this tab; null if none was. */
export function remembered() {
  try {
    return sessionStorage.getItem(SPEECH);
  } catch {
    return null;
  }
}

/** Keep the language for when the page is loaded again in this tab. */
export function remember() {
  try {
    sessionStorage.setItem(SPEECH, SPOKEN);
  } catch { /* the browser stores nothing */ }
}

/**
 * Return what an institution says in the language that is spoken, else in English; undefined if it says it in neither.
 * @template T
 * @param {Record<string, T>} table
 */
export function inSpoken(table) {
  const tag = Object.keys(table).find((each) => each.toLowerCase().split("-")[0] === SPOKEN);
  return tag === undefined ? table.en : table[tag];
}

/**
 * Return a text of an institution's in the language that is spoken; else what else it is called, or the first there is.
 * @param {Text} text
 */
export function textOf(text, otherwise = "") {
  if (typeof text === "string") return text || otherwise;
  return inSpoken(text) ?? (otherwise || text[Object.keys(text).sort()[0]]);
}

/** Write a day, which is given as 2026-11-18, as people do. @param {string} day */
export function dayShown(day) {
  const date = new Date(`${day}T00:00:00Z`);
  return Number.isNaN(date.getTime()) ? day : new Intl.DateTimeFormat(SPOKEN, { dateStyle: "long", timeZone: "UTC" }).format(date);
}

/** Begin with a capital letter. @param {string} text */
export const capital = (text) => text.slice(0, 1).toLocaleUpperCase(SPOKEN) + text.slice(1);
