// The form: for each feature a card with the person's value, and whether and how it may change. Nothing is filled in
// beforehand: a value that somebody forgot would spend a ticket on another person's question.

import { make } from "./elements.js";
import { Trouble } from "./network.js";
import { readNumber, writtenNumber } from "./numbers.js";
import { ruled, waysOf } from "./preferences.js";
import { capital, SPOKEN, WORDS } from "./strings.js";

/**
 * @typedef {import("./preferences.js").Wish} Wish
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 * @typedef {Record<string, string | boolean>} Typed what is in the controls, by their ids
 */

/**
 * A card of the form. `value` and `wish` are undefined if what is typed is none, and then `problem` says why.
 * @typedef {object} Card
 * @property {Feature} feature
 * @property {HTMLElement} box
 * @property {HTMLElement} first the control of the value
 * @property {() => Value | undefined} value
 * @property {() => Wish} wish
 * @property {() => string} problem nothing if all is well; it is said in the card too
 */

/** Say a weight in words. @param {number} weight @param {number} most the greatest weight there is */
export const hardness = (weight, most) => WORDS.scale[Math.round(((WORDS.scale.length - 1) * (weight - 1)) / Math.max(1, most - 1))];

/** Say a person's limits in words; nothing if there are none. @param {Feature} f @param {Wish} wish */
export function limitsOf(f, { low, high }) {
  /** @type {(end: number | undefined) => string} */
  const shown = (end) => (end === undefined ? "" : f.show(end));
  return WORDS.limits(shown(low), shown(high));
}

/**
 * Return a field for a number, as the language writes it. When it is left, it shows how it was read.
 * @param {Feature} f
 * @param {Record<string, unknown>} attributes
 * @param {Value} [start]
 */
function numberField(f, attributes, start) {
  const grouping = !f.format || f.format.includes(",");
  const input = make("input", { type: "text", inputMode: "decimal", lang: SPOKEN, value: typeof start === "number" ? writtenNumber(start, SPOKEN, grouping) : "", ...attributes });
  const read = () => readNumber(input.value, input.lang, f.unit);
  input.addEventListener("blur", () => {
    const number = read();
    if (typeof number === "number") input.value = writtenNumber(number, input.lang, grouping);
  });
  return { input, read };
}

/** @typedef {ReturnType<typeof numberField>} NumberField */

/** @type {(field: NumberField | undefined) => number | undefined} */
const limit = (field) => {
  const number = field?.read();
  return typeof number === "number" ? number : undefined;
};

/** @typedef {[nodes: HTMLElement[], first: HTMLElement, value: () => Value | undefined, field?: NumberField]} ValueControls */

/** @param {Feature} f @param {string} id @param {Value | undefined} start @returns {ValueControls} */
function chosenValue(f, id, start) {
  const optional = f.missing === "level";
  const options = f.values.map((value, n) => make("option", { value: n }, f.show(value)));
  const select = make("select", { id, "aria-label": f.title, required: true },
    make("option", { value: "", disabled: true }, WORDS.choose), ...options, ...(optional ? [make("option", { value: -1 }, WORDS.rather)] : []));
  const at = start === null ? -1 : f.values.findIndex((value) => value === start);
  select.value = at >= 0 || (start === null && optional) ? String(at) : "";
  return [[select], select, () => (select.value === "" ? undefined : f.values[Number(select.value)] ?? null)];
}

/** @param {Feature} f @param {string} id @param {Value | undefined} start @returns {ValueControls} */
function numberValue(f, id, start) {
  const field = numberField(f, { id, "aria-label": f.title, "aria-describedby": `${id}r` }, start), { input } = field;
  const range = make("span", { id: `${id}r`, className: "soft" }, WORDS.hint(f.figures(f.low, SPOKEN), f.show(f.high)));
  const row = make("div", { className: "value" }, input, range);
  if (f.missing !== "level") return [[row], input, () => limit(field), field];
  const none = make("input", { type: "checkbox", id: `${id}n`, checked: start === null });
  const follow = () => { input.disabled = none.checked; };
  none.onchange = follow;
  follow();
  return [[row, make("label", { className: "rather choice" }, none, make("span", {}, WORDS.rather))], input, () => (none.checked ? null : limit(field)), field];
}

/** Return a scale from easy to nearly impossible. @param {HTMLInputElement} weight @param {number} most */
function scaled(weight, most) {
  const { scale } = WORDS, ends = [scale[0], scale[Math.floor(scale.length / 2)], scale[scale.length - 1]];
  const tell = () => weight.setAttribute("aria-valuetext", hardness(Number(weight.value), most));
  weight.addEventListener("input", tell);
  tell();
  return make("div", { className: "scale" }, weight, make("div", { className: "soft", "aria-hidden": "true" }, ...ends.map((text) => make("span", {}, text))));
}

/** @param {Feature} f @param {string} id @param {number} most the greatest weight there is @returns {[HTMLElement[], () => Wish, NumberField[]]} */
function wishControls(f, id, most) {
  const ways = waysOf(f), usual = ruled(f);
  const change = make("select", { id: `${id}c`, "aria-label": WORDS.may(f.title) }, ...ways.map((way) => make("option", { value: way, selected: way === usual.change }, WORDS.change[way])));
  const weight = make("input", { type: "range", id: `${id}h`, min: f.override ? 1 : f.effort, max: most, value: f.effort });
  const rows = [make("label", { htmlFor: weight.id }, WORDS.reluctance), scaled(weight, most)];
  /** @type {NumberField[]} */
  const bounds = [];
  if (f.kind === "numeric") {
    for (const [end, name] of /** @type {const} */ ([[f.low, WORDS.from], [f.high, WORDS.to]]))
      bounds.push(numberField(f, { id: id + (bounds.length ? "b" : "a"), placeholder: f.show(end), "aria-label": `${f.title}: ${name}` }));
    rows.push(make("div", {}, WORDS.between), make("div", { className: "pair" }, bounds[0].input, WORDS.and, bounds[1].input));
  }
  const chosen = () => ways[change.selectedIndex];
  /** @type {() => Wish} */
  const wish = () => ({ change: chosen(), weight: Number(weight.value), ...(chosen() === "locked" ? {} : { low: limit(bounds[0]), high: limit(bounds[1]) }) });
  const summary = make("summary", {}), details = make("details", {}, summary, ...rows);
  const sum = () => {
    details.hidden = chosen() === "locked";
    summary.textContent = WORDS.summary(hardness(Number(weight.value), most), limitsOf(f, wish()));
  };
  details.addEventListener("input", sum);
  change.addEventListener("input", sum);
  sum();
  const isFixed = ways.length === 1 && ways[0] === "locked";
  return [isFixed ? [make("p", { className: "fixed soft" }, WORDS.fixed)] : [change, details], wish, bounds];
}

/** Say what is wrong with a number that was typed; nothing if it is one, or if there is none. @param {Feature} f @param {NumberField | undefined} field */
function misread(f, field) {
  const read = field?.input.disabled ? undefined : field?.read();
  if (read === "ambiguous") return WORDS.ambiguous(writtenNumber(1.5, SPOKEN));
  return read === "letters" ? WORDS.numeral(f.figures(f.low, SPOKEN), f.show(f.high)) : "";
}

/** @param {Feature} f @param {ValueControls} controls @param {() => Wish} wish @param {NumberField[]} bounds */
function problemOf(f, [, , value, field], wish, bounds) {
  const given = value(), { change, low, high } = wish();
  const wrong = misread(f, field) || (given === undefined ? WORDS.unfilled : "");
  if (wrong) return wrong;
  if (f.kind === "numeric" && given !== null && !(Number(given) >= f.low && Number(given) <= f.high)) return WORDS.range(capital(f.title), f.figures(f.low, SPOKEN), f.show(f.high));
  const [limits = ""] = change === "locked" ? [] : bounds.map((bound) => misread(f, bound)).filter(Boolean);
  return limits || (low !== undefined && high !== undefined && low > high ? WORDS.crossed(capital(f.title)) : "");
}

/**
 * Return features by their groups, in the order in which groups first appear; those without a group come last.
 * @param {Feature[]} features
 * @returns {[heading: string, features: Feature[]][]} the heading is empty if there are no groups
 */
export function grouped(features) {
  const groups = [...new Set(features.map((f) => f.group))].sort((a, b) => Number(!a) - Number(!b));
  return groups.map((group) => [group || (groups.length > 1 ? WORDS.otherGroup : ""), features.filter((f) => f.group === group)]);
}

/** The cards of all features, in their groups. */
export class Form {
  /**
   * @param {HTMLElement} place
   * @param {import("./deployment.js").Deployment} deployment
   * @param {Record<string, Value>} person what is filled in, if anything
   */
  constructor(place, { schema, terms }, person) {
    this.place = place;
    this.cards = schema.costed.map((f, i) => this.card(f, i, terms.parameters.max_weight, Object.hasOwn(person, f.name) ? person[f.name] : undefined));
    this.ordered = grouped(schema.costed).flatMap(([, features]) => this.cards.filter(({ feature }) => features.includes(feature))); // as on the page
    place.replaceChildren(...grouped(schema.costed).map(([heading, features]) => {
      const boxes = this.cards.filter(({ feature }) => features.includes(feature)).map(({ box }) => box);
      return make("section", { className: "group" }, ...(heading ? [make("h2", {}, heading)] : []), make("div", { className: "cards" }, ...boxes));
    }));
  }

  /** @param {Feature} feature @param {number} i @param {number} most @param {Value | undefined} start @returns {Card} */
  card(feature, i, most, start) {
    const controls = (feature.kind === "numeric" ? numberValue : chosenValue)(feature, `f${i}`, start), [values, first, value] = controls;
    const [wishes, wish, bounds] = wishControls(feature, `w${i}`, most);
    const said = make("p", { className: "problem", id: `p${i}`, hidden: true });
    const box = make("fieldset", {}, make("legend", {}, feature.title), ...values, said, ...wishes);
    const problem = () => problemOf(feature, controls, wish, bounds);
    const mark = () => {
      said.textContent = problem();
      said.hidden = !said.textContent;
      first.setAttribute("aria-invalid", String(!said.hidden));
    };
    box.addEventListener("change", () => { if (!said.hidden) mark(); }); // what was complained of is looked at again
    return { feature, box, first, value, wish, problem: () => { mark(); return problem(); } };
  }

  /** Return what was typed; refuse what cannot be asked, at the place where it is and in one sentence. */
  read() {
    const wrong = this.ordered.filter((card) => card.problem());
    if (wrong.length) {
      /** @type {(card: Card) => string} */
      const quoted = ({ feature }) => WORDS.quoted(capital(feature.title));
      const empty = wrong.filter((card) => card.problem() === WORDS.unfilled), others = wrong.filter((card) => !empty.includes(card)).map((card) => (
        card.problem().startsWith(capital(card.feature.title)) ? card.problem() : `${quoted(card)}: ${card.problem()}`));
      throw new Trouble("input", [...(empty.length ? [WORDS.todo(empty.map(quoted).join(", "))] : []), ...others].join(" "));
    }
    return {
      before: new Map(this.cards.map(({ feature, value }) => [feature, value() ?? null])),
      wishes: new Map(this.cards.map(({ feature, wish }) => [feature, wish()])),
    };
  }

  /** Go to the first card that something is wrong with. */
  showProblem() {
    const wrong = this.ordered.find((card) => card.problem());
    wrong?.first.focus({ preventScroll: true });
    wrong?.box.scrollIntoView({ block: "center" });
    return wrong !== undefined;
  }

  /** Return what is in the controls, numbers as they are written in the language that is spoken now. @returns {Typed} */
  typed() {
    const controls = /** @type {NodeListOf<HTMLInputElement>} */ (this.place.querySelectorAll("input, select"));
    /** @type {(each: HTMLInputElement) => string} */
    const written = (each) => {
      const number = each.inputMode === "decimal" ? readNumber(each.value, each.lang) : undefined;
      return typeof number === "number" ? writtenNumber(number, SPOKEN, false) : each.value;
    };
    return Object.fromEntries([...controls].map((each) => [each.id, each.type === "checkbox" ? each.checked : written(each)]));
  }

  /** Put back what was in the controls of the same form, in another language. @param {Typed} typed */
  type(typed) {
    for (const [id, value] of Object.entries(typed)) {
      const control = /** @type {HTMLInputElement | null} */ (this.place.querySelector(`#${id}`));
      if (typeof value === "boolean") Object.assign(control ?? {}, { checked: value });
      else Object.assign(control ?? {}, { value });
      control?.dispatchEvent(new Event(typeof value === "boolean" ? "change" : "input", { bubbles: true }));
      control?.dispatchEvent(new Event("blur")); // numbers are written anew
    }
  }
}
