// Answers that this tab keeps, also while another question is asked and when the page is loaded again. They are in the
// tab's session storage and nowhere else, until the tab is closed or the person forgets them. No ticket is kept.

import { answerCard, answerText, comparison } from "./answer.js";
import { DEARER } from "./constants.js";
import { Deployment } from "./deployment.js";
import { make } from "./elements.js";
import { explainedAgain } from "./explain.js";
import { makeReceipt } from "./receipt.js";
import { WORDS } from "./strings.js";
import { hex } from "./wire.js";

/**
 * @typedef {import("./preferences.js").Wish} Wish
 * @typedef {import("./preferences.js").Wishes} Wishes
 * @typedef {import("./schema.js").Feature} Feature
 * @typedef {import("./schema.js").Value} Value
 */

/**
 * An answer as it is stored: what was signed, and what was asked.
 * @typedef {object} Item
 * @property {number} number counts the answers of this tab
 * @property {string} date
 * @property {string} digest of the terms
 * @property {import("./wire.js").SignedTerms} issued
 * @property {import("./explain.js").Signed[]} signed
 * @property {number[]} liars
 * @property {string[]} missing addresses of servers that were out of reach and not needed
 * @property {Record<string, Value>} values
 * @property {Record<string, Wish>} wishes
 * @property {boolean} fewest
 * @property {number} unlike the number of the answer that this one should differ from; 0: none
 */

/** @typedef {{ before: Map<Feature, Value>, own: import("./schema.js").Levels, wishes: Wishes, unlike: number }} Placed what was asked, by the features of a deployment */
/** @typedef {Placed & { item: Item, deployment: Deployment, found: import("./explain.js").Found }} View an answer that can be shown */
/** @typedef {(item: Item, wishes: Record<string, Wish>) => void} AskAgain */

const STORE = "counterveil answers";

/**
 * Return what was asked, by the features of this deployment.
 * @param {Deployment} deployment
 * @param {Pick<Item, "values" | "wishes" | "fewest" | "unlike">} item
 * @returns {Placed}
 */
export function placed({ schema }, { values, wishes, fewest, unlike = 0 }) {
  const before = new Map(schema.costed.map((f) => [f, values[f.name]]));
  return {
    before, unlike, own: new Map(schema.costed.map((f) => [f, f.code(values[f.name])])),
    wishes: Object.assign(new Map(schema.costed.map((f) => [f, wishes[f.name]])), { fewest }),
  };
}

/**
 * Return wishes for another answer: what this one changes costs more, or must stay.
 * @param {View} view
 * @param {boolean} stays
 */
function wishesUnlike({ item, deployment, found }, stays) {
  const most = deployment.terms.parameters.max_weight, [first] = found.explanations;
  const changed = first.changes.map(({ feature: { name, effort } }) => {
    const wish = item.wishes[name] ?? {};
    /** @type {[string, Wish]} */
    const other = [name, stays ? { ...wish, change: "locked" } : { ...wish, weight: Math.min(most, DEARER * (wish.weight ?? effort)) }];
    return other;
  });
  return { ...item.wishes, ...Object.fromEntries(changed) };
}

/** Let the browser save a text as a file. @param {string} name @param {string} text @param {string} type */
function saveFile(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Print one answer alone. @param {HTMLElement} card */
function printAlone(card) {
  const root = document.documentElement;
  root.dataset.printed = card.dataset.printed = "one";
  addEventListener("afterprint", () => {
    delete root.dataset.printed;
    delete card.dataset.printed;
  }, { once: true });
  print();
}

/** Today's date, as this computer has it. */
function today() {
  const now = new Date();
  return new Date(now.getTime() - 60_000 * now.getTimezoneOffset()).toISOString().slice(0, 10);
}

/** The answers of this tab: the newest in its own section, and earlier ones below it. */
export class Shelf {
  /**
   * @param {HTMLElement} newest shows the last answer
   * @param {AskAgain} askAgain asks for another answer
   */
  constructor(newest, askAgain) {
    this.newest = newest;
    this.askAgain = askAgain;
    this.earlier = make("section", { id: "kept", hidden: true });
    newest.after(this.earlier);
    this.said = make("p", { id: "forgotten", className: "soft", role: "status" });
    newest.before(this.said);
    const seeEarlier = () => this.earlier.scrollIntoView({ block: "start" });
    this.link = make("button", { type: "button", className: "link", onclick: seeEarlier });
    this.note = make("p", { id: "earlier", hidden: true }, this.link); // at the top of the page
    /** @type {View[]} */
    this.views = [];
    this.isAsking = true; // until the first answer
  }

  /** Show the answers that were kept when the page was left. */
  async restore() {
    /** @type {unknown[]} */
    let items = [];
    try {
      items = JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
      for (const stored of items) {
        const item = /** @type {Item} */ (stored), deployment = new Deployment(JSON.parse(item.issued.terms));
        const asked = placed(deployment, item), explanations = await explainedAgain(deployment, asked.own, asked.wishes, item.signed);
        this.views.push({ ...asked, item, deployment, found: { explanations, liars: item.liars, signed: item.signed } });
      }
    } catch {
      this.store(); // what cannot be read is of no use
    }
    this.draw();
  }

  /** Whether the answers could be kept. */
  store() {
    try {
      if (this.views.length) sessionStorage.setItem(STORE, JSON.stringify(this.views.map(({ item }) => item)));
      else sessionStorage.removeItem(STORE);
      return true;
    } catch {
      return false; // the browser stores nothing, or not so much
    }
  }

  /** Put the last answer with the earlier ones, because another question is asked. */
  retire() {
    this.isAsking = true;
    this.draw();
  }

  /**
   * Keep and show a new answer.
   * @param {import("./client.js").Session} session
   * @param {import("./explain.js").Found} found
   * @param {Placed} asked
   */
  add({ deployment, digest, issued, missing }, found, { before, own, wishes, unlike }) {
    /** @type {<T>(map: Map<Feature, T>) => Record<string, T>} */
    const named = (map) => Object.fromEntries([...map].map(([f, value]) => [f.name, value]));
    const number = 1 + Math.max(0, ...this.views.map(({ item }) => item.number));
    const item = {
      number, date: today(), digest: hex(digest), issued, signed: found.signed, liars: found.liars, missing: [...missing],
      values: named(before), wishes: named(wishes), fewest: wishes.fewest === true, unlike,
    };
    this.views.push({ before, own, wishes, unlike, item, deployment, found });
    this.isAsking = false;
    const isKept = this.store();
    this.draw();
    if (!isKept) this.newest.append(make("p", { className: "card" }, WORDS.kept.notKept));
  }

  /** @param {View} view */
  forget(view) {
    if (view === this.views.at(-1)) this.isAsking = true; // no earlier answer takes its place
    this.views = this.views.filter((each) => each !== view);
    this.store();
    this.draw();
    this.said.textContent = WORDS.kept.forgotten;
  }

  forgetAll() {
    [this.views, this.isAsking] = [[], true];
    this.store();
    this.draw();
    this.said.textContent = WORDS.kept.forgotten;
  }

  draw() {
    this.said.textContent = "";
    this.earlier.setAttribute("aria-label", WORDS.kept.earlier);
    const views = this.isAsking ? [] : this.views.slice(-1), earlier = this.views.filter((view) => !views.includes(view)).reverse();
    this.newest.replaceChildren(...views.map((view) => this.card(view)));
    this.newest.hidden = !views.length;
    const last = this.views.at(-1);
    const likely = this.views.filter(({ item }) => item.digest === last?.item.digest && JSON.stringify(item.values) === JSON.stringify(last.item.values));
    const beside = comparison(likely.map(({ item, before, found }) => ({ number: item.number, before, explanations: found.explanations })));
    const all = this.views.length > 1 ? [make("div", { className: "tools" }, make("button", { type: "button", className: "quiet", id: "forget-all", onclick: () => this.forgetAll() }, WORDS.kept.forgetAll))] : [];
    this.earlier.replaceChildren(...beside, ...(earlier.length ? [make("h2", {}, WORDS.kept.earlier), make("p", { className: "soft" }, WORDS.kept.where)] : []), ...all, ...earlier.map((view) => this.card(view)));
    this.link.textContent = WORDS.kept.count(earlier.length);
    this.note.hidden = !earlier.length;
    for (const twice of this.earlier.querySelectorAll("#sentence, #certificate")) twice.removeAttribute("id");
    this.earlier.hidden = !this.earlier.childElementCount;
  }

  /** @param {View} view */
  card(view) {
    const { item, deployment, found, before } = view, card = answerCard(deployment, found, before, item), twin = this.twinOf(view);
    if (twin) card.querySelector("h2")?.after(make("p", { className: "same" }, WORDS.kept.sameAs(twin.item.number, WORDS.kept.stays)));
    const withQuestion = make("input", { type: "checkbox" }), status = make("span", { className: "soft", role: "status" });
    /** @type {(text: string, act: () => unknown, className?: string) => HTMLElement} */
    const button = (text, act, className = "quiet") => make("button", { type: "button", className, onclick: act }, text);
    const text = () => answerText(deployment, found, before, item);
    const copy = () => navigator.clipboard.writeText(text()).then(() => WORDS.kept.copied, () => WORDS.kept.notCopied).then((said) => { status.textContent = said; });
    const save = async () => saveFile(`receipt-${item.date}-${item.number}.json`, await makeReceipt(item.issued, this.signed(view), item.date, withQuestion.checked ? item.values : null), "application/json");
    const feasible = found.explanations[0].feasible;
    const tools = make("div", { className: "tools" },
      button(WORDS.kept.save, () => saveFile(`answer-${item.date}-${item.number}.txt`, text(), "text/plain")),
      button(WORDS.kept.print, () => printAlone(card)), button(WORDS.kept.copy, copy), button(WORDS.kept.forget, () => this.forget(view)), status);
    card.append(tools);
    if (!feasible) return card;
    const receipt = make("div", { className: "tools" }, button(WORDS.kept.receipt, save), make("label", { className: "choice" }, withQuestion, make("span", {}, WORDS.kept.withQuestion)));
    card.append(receipt, make("p", { className: "soft tools" }, WORDS.kept.receiptWhy));
    if (view === this.views.at(-1) && found.explanations[0].changes.length) card.append(this.anotherWay(view));
    return card;
  }

  /** Return the answer that this one should differ from, if it does not. @param {View} view */
  twinOf({ item, found }) {
    /** @type {(of: import("./explain.js").Found) => string} */
    const levels = (of) => JSON.stringify([...of.explanations[0].codes.values()]);
    return this.views.find((each) => each.item.number === item.unlike && each.item.digest === item.digest && levels(each.found) === levels(found));
  }

  /** Return the records that a receipt is of: those that fit the person's limits. @param {View} view */
  signed({ item, found }) {
    return item.signed.filter((_, i) => found.explanations[i].feasible);
  }

  /** @param {View} view */
  anotherWay(view) {
    const ways = [`${WORDS.kept.stays} ${WORDS.kept.staysRisk}`, WORDS.kept.dearer].map((words, i) => {
      const choice = make("input", { type: "radio", name: "another", checked: i === 0 });
      return { choice, label: make("label", { className: "choice" }, choice, make("span", {}, words)) };
    });
    const ask = make("button", { type: "button", id: "another", onclick: () => this.askAgain(view.item, wishesUnlike(view, ways[0].choice.checked)) }, WORDS.kept.ask);
    return make("fieldset", { className: "another tools" }, make("legend", {}, WORDS.kept.another), make("p", {}, WORDS.kept.anotherWhy),
      ...ways.map(({ label }) => label), make("div", { className: "way" }, ask));
  }
}
