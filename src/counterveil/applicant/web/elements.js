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
