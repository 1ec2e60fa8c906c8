// Elements of a page: made in one call, and bytes as a picture. Nothing here knows what the page is about.

/** @typedef {import("./wire.js").Bytes} Bytes */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} attributes set as properties if the element has them, else as attributes
 * @param {...(Node | string)} children
 */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node) Object.assign(node, { [name]: value });
    else node.setAttribute(name, String(value));
  }
  node.append(...children);
  return node;
}

/**
 * Draw the levels of a feature as a line: bands where they are inside a region, a ring for now, a dot for the way in.
 * @param {boolean[]} members
 * @param {number} before
 * @param {number} after
 */
export function track(members, before, after) {
  const line = make("div", { className: "track", "aria-hidden": "true" }), last = Math.max(1, members.length - 1);
  /** @type {(className: string, from: number, to: number) => void} */
  const mark = (className, from, to) => {
    const node = make("span", { className });
    node.style.insetInlineStart = `${(100 * from) / last}%`;
    if (to > from) node.style.width = `${(100 * (to - from)) / last}%`;
    line.append(node);
  };
  for (let from = 0; from < members.length; from++) {
    if (!members[from] || members[from - 1]) continue;
    const end = members.indexOf(false, from);
    const to = (end < 0 ? members.length : end) - 1;
    mark(to > from ? "band" : "band one", from, to);
  }
  mark("now", before, before);
  mark("entry", after, after);
  return line;
}

/** Paint bytes as grey squares.
 * @param {Bytes} bytes @param {string} label */
export function picture(bytes, label) {
  const width = 48, height = Math.min(24, Math.ceil(bytes.length / width));
  const canvas = make("canvas", { width, height, role: "img", "aria-label": label });
  const paint = canvas.getContext("2d");
  if (!paint) return canvas;
  const image = paint.createImageData(width, height);
  bytes.slice(0, width * height).forEach((grey, i) => image.data.set([grey, grey, grey, 255], 4 * i));
  paint.putImageData(image, 0, 0);
  return canvas;
}
