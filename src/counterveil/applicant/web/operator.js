// The institution's page: numbers of one server, refreshed every few seconds. The token stays in this tab's memory.

/**
 * What the server reports.
 * @typedef {object} Status
 * @property {[name: string, value: string][]} facts
 * @property {number} leaked bits
 * @property {number | null} budget
 * @property {Minute[]} minutes
 */

/** @typedef {{ answered: number, refused: number }} Minute */
/** @typedef {{ enter: HTMLFormElement, token: HTMLInputElement, status: HTMLElement, facts: HTMLElement }} Elements the page's elements by id */

/** @type {<Id extends keyof Elements>(id: Id) => Elements[Id]} */
const $ = (id) => /** @type {Elements[typeof id]} */ (document.getElementById(id));
const SVG = "http://www.w3.org/2000/svg";
/** @type {number | undefined} */
let timer;

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} text
 */
function make(tag, text, className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  node.className = className;
  return node;
}

/**
 * @template {keyof SVGElementTagNameMap} Name
 * @param {Name} name
 * @param {Record<string, string | number>} attributes
 */
function drawn(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/** @param {string} title @param {Minute[]} minutes @param {(minute: Minute) => number} pick */
function chart(title, minutes, pick) {
  const width = 600, height = 120, values = minutes.map(pick), most = Math.max(1, ...values);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height + 1}`, role: "img", "aria-label": `${title}: up to ${most} a minute` });
  const each = width / Math.max(60, values.length);
  values.forEach((value, i) => {
    const tall = (height * value) / most;
    svg.append(drawn("rect", { x: width - (values.length - i) * each, y: height - tall, width: Math.max(1, each - 1), height: tall, class: "column" }));
  });
  svg.append(drawn("line", { x1: 0, x2: width, y1: height, y2: height, class: "axis" }));
  const box = document.createElement("div");
  box.className = "card";
  box.append(make("h2", title), svg, make("p", `${values.length} minutes, at most ${most} a minute`, "soft")); // not in the picture, where a phone would shrink it
  return box;
}

/** @param {Status} status */
function facts(status) {
  const table = document.createElement("table");
  for (const [name, value] of status.facts) {
    const row = table.insertRow();
    const head = make("th", name);
    head.scope = "row";
    row.append(head, make("td", value));
  }
  const card = document.createElement("div");
  card.className = "card";
  card.append(make("h2", "Now"), table);
  if (status.budget) {
    const used = Math.min(1, status.leaked / status.budget);
    const bar = make("div", "", "bar");
    bar.style.width = `${100 * used}%`;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `${Math.round(100 * used)} % of the budget`);
    card.append(make("p", `Given away: ${Math.round(100 * used)} % of the budget`), bar);
  }
  return card;
}

/** @param {string} token */
async function refresh(token) {
  const response = await fetch("operator/status", { headers: { authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" });
  if (response.status === 401) {
    clearInterval(timer);
    $("enter").hidden = false;
    $("facts").hidden = true;
    $("status").replaceChildren(make("p", "That is not this server's token.", "card trouble"));
    return;
  }
  /** @type {Status} */
  const status = await response.json();
  $("enter").hidden = true;
  $("status").replaceChildren();
  $("facts").replaceChildren(
    facts(status),
    chart("Questions answered", status.minutes, (m) => m.answered),
    chart("Refused", status.minutes, (m) => m.refused),
  );
  $("facts").hidden = false;
}

$("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value;
  const again = () => refresh(token).catch(() => $("status").replaceChildren(make("p", "The server does not answer.", "card trouble")));
  clearInterval(timer);
  timer = setInterval(again, 5000);
  again();
});
