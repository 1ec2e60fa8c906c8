// Messages to bytes and back, as docs/wire.md has them. Everything from a server is hostile until a function here has returned.

import { bitsOf } from "./field.js";

export class Malformed extends Error {}

export const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
export const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
export const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

const utf8 = new TextEncoder();

export const concat = (...parts) => concatAll(parts);

export function concatAll(parts) {
  const whole = new Uint8Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

// Each part behind its length: what signatures are over.
export function frame(...parts) {
  return concat(...parts.flatMap((part) => {
    const raw = typeof part === "string" ? utf8.encode(part) : part;
    const length = new Uint8Array(8);
    new DataView(length.buffer).setBigUint64(0, BigInt(raw.length), true);
    return [length, raw];
  }));
}

export const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

export const digestOf = (text) => sha256(utf8.encode(text));

// Whether the holder of a public key signed these parts for this purpose.
export async function isSigned(publicKey, signature, purpose, ...parts) {
  const holder = await crypto.subtle.importKey("raw", unhex(publicKey), "Ed25519", false, ["verify"]);
  return crypto.subtle.verify("Ed25519", holder, signature, frame("counterveil/2", purpose, ...parts));
}

// To be read out over the telephone.
export const fingerprint = async (publicKey) => hex((await sha256(unhex(publicKey))).slice(0, 16)).match(/.{4}/g).join(" ");

// --- MessagePack: whole numbers, texts, byte strings and arrays, each in its shortest form -------------------------

function sized(value, sizes) {
  for (const [most, tag, bytes] of sizes) {
    if (value > most) continue;
    const out = new Uint8Array(1 + bytes);
    out[0] = tag;
    for (let i = 0; i < bytes; i++) out[bytes - i] = Math.floor(value / 2 ** (8 * i)) % 256;
    return out;
  }
  throw new Malformed("too large");
}

export function pack(value) {
  if (typeof value === "number") {
    if (value < 128) return Uint8Array.of(value);
    return sized(value, [[255, 0xcc, 1], [65535, 0xcd, 2], [2 ** 32 - 1, 0xce, 4], [2 ** 53 - 1, 0xcf, 8]]);
  }
  if (typeof value === "string") {
    const raw = utf8.encode(value);
    const head = raw.length < 32 ? Uint8Array.of(0xa0 | raw.length) : sized(raw.length, [[255, 0xd9, 1], [65535, 0xda, 2]]);
    return concat(head, raw);
  }
  if (value instanceof Uint8Array) {
    return concat(sized(value.length, [[255, 0xc4, 1], [65535, 0xc5, 2], [2 ** 32 - 1, 0xc6, 4]]), value);
  }
  const head = value.length < 16 ? Uint8Array.of(0x90 | value.length) : sized(value.length, [[65535, 0xdc, 2]]);
  return concat(head, ...value.map(pack));
}

export function unpack(bytes) {
  let at = 0;
  const number = (count) => {
    if (at + count > bytes.length) throw new Malformed("cut short");
    let value = 0;
    for (let i = 0; i < count; i++) value = value * 256 + bytes[at++];
    return value;
  };
  const slice = (count) => {
    if (at + count > bytes.length) throw new Malformed("cut short");
    return bytes.slice(at, (at += count));
  };
  const read = (depth) => {
    const tag = number(1);
    if (tag < 0x80) return tag;
    if (tag >= 0xcc && tag <= 0xcf) return number(1 << (tag - 0xcc));
    if (tag >= 0xa0 && tag < 0xc0) return text(slice(tag & 31));
    if (tag === 0xd9 || tag === 0xda) return text(slice(number(tag - 0xd8)));
    if (tag >= 0xc4 && tag <= 0xc6) return slice(number(1 << (tag - 0xc4)));
    const count = tag >= 0x90 && tag < 0xa0 ? tag & 15 : tag === 0xdc ? number(2) : -1;
    if (count < 0 || depth > 3) throw new Malformed("not a message");
    return Array.from({ length: count }, () => read(depth + 1));
  };
  const value = read(0);
  if (at !== bytes.length || !same(pack(value), bytes)) throw new Malformed("another encoding of the same");
  return value;
}

function text(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    throw new Malformed("not UTF-8");
  }
}

// --- vectors ---------------------------------------------------------------------------------------------------------

export const packedBytes = (bits, count) => Math.ceil((bits * count) / 8);

export function packVector(values, q) {
  const bits = bitsOf(q);
  const out = new Uint8Array(packedBytes(bits, values.length));
  let held = 0n, filled = 0n, at = 0;
  for (const value of values) {
    held |= value << filled;
    for (filled += BigInt(bits); filled >= 8n; filled -= 8n, held >>= 8n) out[at++] = Number(held & 255n);
  }
  if (filled > 0n) out[at] = Number(held);
  return out;
}

export function unpackVector(bytes, q, count) {
  const bits = bitsOf(q);
  if (bytes.length !== packedBytes(bits, count)) throw new Malformed(`got ${bytes.length} bytes, expected ${packedBytes(bits, count)}`);
  const padded = new DataView(concat(bytes, new Uint8Array(16)).buffer);
  const mask = (1n << BigInt(bits)) - 1n;
  const values = new Array(count);
  for (let i = 0, bit = 0; i < count; i++, bit += bits) {
    const at = bit >> 3, shift = BigInt(bit & 7);
    let word = padded.getBigUint64(at, true) >> shift;
    if (bits + (bit & 7) > 64) word |= padded.getBigUint64(at + 8, true) << (64n - shift);
    values[i] = word & mask;
    if (values[i] >= q) throw new Malformed("a symbol of q or more");
  }
  const spare = bytes.length * 8 - bits * count;
  if (spare && bytes.at(-1) >> (8 - spare)) throw new Malformed("bits set after the last symbol");
  return values;
}

// --- messages and tickets --------------------------------------------------------------------------------------------

const isNumber = (value, low, high) => Number.isInteger(value) && value >= low && value <= high;
const isBytes = (value, length) => value instanceof Uint8Array && value.length === length;

function checkServers(servers) {
  const fine = Array.isArray(servers) && servers.length >= 1 && servers.length <= 64
    && servers.every((n, i) => isNumber(n, 1, 64) && (i === 0 || n > servers[i - 1]));
  if (!fine) throw new Malformed("servers");
}

// `secret` is drawn for this question and this server: nobody else can find out whether these bytes were sent, or ask on.
export const encodeRequest = ({ kind, server, terms, key, ticket, request, among, secret, body }) =>
  pack([2, kind, server, terms, key, ticket, request, among, secret, body]);

export const encodeReply = ({ kind, server, ticket, request, among, body }) => pack([2, kind, server, ticket, request, among, body]);

// What stands before a body of so many bytes: a reply can be read part by part.
export function headOf(reply, length) {
  const bare = encodeReply({ ...reply, body: new Uint8Array() });
  return concat(bare.slice(0, -2), sized(length, [[255, 0xc4, 1], [65535, 0xc5, 2], [2 ** 32 - 1, 0xc6, 4]]));
}

export function decodeReply(bytes, expected) {
  const fields = unpack(bytes);
  if (!Array.isArray(fields) || fields.length !== 7) throw new Malformed("not seven fields");
  const [version, kind, server, ticket, request, among, body] = fields;
  const fine = version === 2 && ["answer", "record-answer"].includes(kind) && isNumber(server, 1, 64) && isBytes(ticket, 16)
    && isNumber(request, 0, 255) && body instanceof Uint8Array;
  if (!fine || kind !== expected) throw new Malformed(`not a message of kind ${expected}`);
  checkServers(among);
  return { kind, server, ticket, request, among, body };
}

export function decodeTicket(textOfTicket) {
  let bytes;
  try {
    const plain = textOfTicket.trim().replaceAll("-", "+").replaceAll("_", "/");
    if (!/^[A-Za-z0-9+/]+$/.test(plain)) throw new Malformed("letters");
    bytes = Uint8Array.from(atob(plain), (c) => c.charCodeAt(0));
  } catch {
    throw new Malformed("not a ticket");
  }
  const outer = unpack(bytes);
  if (!Array.isArray(outer) || outer.length !== 2 || !outer.every((part) => part instanceof Uint8Array) || outer[1].length > 64)
    throw new Malformed("not a ticket");
  const fields = unpack(outer[0]);
  if (!Array.isArray(fields) || fields.length !== 8) throw new Malformed("not a ticket");
  const [version, id, expires, service, servers, reveal, liars, k] = fields;
  const fine = version === 2 && isBytes(id, 16) && isNumber(expires, 0, 2 ** 53 - 1) && isNumber(liars, 0, 5) && isNumber(k, 1, 255)
    && typeof service === "string" && /^[A-Za-z0-9._:/-]{1,64}$/.test(service) && typeof reveal === "string" && [...reveal].length <= 100;
  if (!fine) throw new Malformed("not a ticket");
  checkServers(servers);
  return { id, expires, service, servers, reveal, liars, k, signed: outer[0], signature: outer[1], bytes };
}

// A ticket of one's own, which only open mode takes.
export function makeTicket({ expires, service, servers, reveal, k, liars = 0 }) {
  const id = crypto.getRandomValues(new Uint8Array(16)), signature = new Uint8Array();
  const signed = pack([2, id, expires, service, servers, reveal, liars, k]);
  return { id, expires, service, servers, reveal, liars, k, signed, signature, bytes: pack([signed, signature]) };
}
