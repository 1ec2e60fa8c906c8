// Turn messages into bytes and back, as docs/wire.md specifies. Bytes from a server are trusted only after a check here.

import { FINGERPRINT_BYTES, ID_BYTES, LONGEST_REVEAL, MOST_RECORDS, MOST_ROBUST, MOST_SERVERS, PROTOCOL, SERVICE_PATTERN, SIGNATURE_BYTES, VERSION } from "./constants.js";
import { bitsOf } from "./field.js";

/**
 * @typedef {Uint8Array<ArrayBuffer>} Bytes
 * @typedef {typeof import("./constants.js").PURPOSES[number]} Purpose of a signature
 * @typedef {typeof import("./constants.js").REQUEST_KINDS[number]} RequestKind
 * @typedef {typeof import("./constants.js").REPLY_KINDS[number]} ReplyKind
 * @typedef {typeof import("./constants.js").RECORD_KINDS[number]} RecordKind
 * @typedef {typeof import("./constants.js").TICKET_MODES[number]} TicketMode
 */

/**
 * What an applicant sends: a share of a question, or of the position of a record. Servers that talk to each other get an
 * attempt instead: a share of the question, and their randomness if the applicant deals it. A "collect" asks for the reply
 * to an attempt, or for its end, and has no body.
 * @typedef {object} Request
 * @property {RequestKind} kind
 * @property {number} server the receiver
 * @property {Bytes} terms digest of the terms that the request was made for
 * @property {Bytes} key id of the servers' common key, as their manifests showed it
 * @property {Bytes} ticket
 * @property {number} request 0: the question; 1..k: a record; or an attempt's number
 * @property {number[]} among all servers that get a share of this request
 * @property {Bytes} secret drawn for this question and this server. So nobody else can find out whether these bytes were sent, or ask for its records
 * @property {Bytes} body
 */

/**
 * What a server sends back. It names the request that it answers, and repeats nothing secret of that request.
 * @typedef {object} Reply
 * @property {ReplyKind} kind
 * @property {number} server the sender
 * @property {Bytes} ticket its id
 * @property {number} request
 * @property {number[]} among
 * @property {Bytes} body
 */

/**
 * What a ticket allows: one question and k records, once, at each of these servers of a service.
 * @typedef {object} Claims
 * @property {number} expires seconds since 1970
 * @property {string} service
 * @property {number[]} servers ascending; none: the first ones of the terms, as many as are needed
 * @property {string} reveal what may be revealed
 * @property {number} liars how many wrong answers the applicant can correct
 * @property {number} k
 */

/** @typedef {Claims & { id: Bytes, signed: Bytes, signature: Bytes, bytes: Bytes }} Ticket its claims, and their bytes */

/**
 * What the institution chose.
 * @typedef {object} Parameters
 * @property {Record<string, Record<string, unknown>>} [options] parameters that only this form, kind of record or protocol has
 * @property {string} [protocol] how the reveal is computed; absent: in its usual way
 * @property {string} scheme
 * @property {number} servers
 * @property {number} collusion
 * @property {number} k
 * @property {number} max_weight
 * @property {boolean} shuffle
 * @property {number} d_min
 * @property {number} norm
 */

/**
 * Everything that is public and the same at every server.
 * @typedef {object} Terms
 * @property {string} version
 * @property {string} service tickets name it
 * @property {import("./schema.js").RawSchema} schema
 * @property {Parameters} parameters
 * @property {string} q decimal digits
 * @property {number[]} alphas
 * @property {number} rows
 * @property {RecordKind} record
 * @property {string} database the bundle's digest
 * @property {string} packages the SHA-256 of all its packages
 * @property {string} issuer public key; its owner signs tickets, records and these terms
 * @property {string[]} keys each server's own public key
 * @property {TicketMode} tickets
 * @property {number} window open mode: seconds within which an applicant's ticket must expire
 * @property {number} robust the most wrong answers for which tickets are issued
 * @property {number} [begins] seconds since 1970: of several terms, applicants take those that begin last
 * @property {number} [ends] seconds since 1970
 * @property {string} [dealer] the dealing server's own public key; absent where there is none
 */

/** @typedef {{ terms: string, addresses: string[], signature: string, names?: import("./strings.js").Text[] }} SignedTerms the terms as text, the address of each server, who runs it if that is said, and the issuer's signature of all */

/**
 * What a server says of itself, with its own signature.
 * @typedef {object} Manifest
 * @property {number} server
 * @property {string} key id of the common key
 * @property {string} instance the ledger's id
 * @property {string} software
 * @property {SignedTerms} issued
 * @property {string} signature
 */

export class Malformed extends Error {}

/** @type {(bytes: Iterable<number>) => string} */
export const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
/** @type {(text: string) => Bytes} */
export const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
/** @type {<T>(a: ArrayLike<T> & { every: (fits: (value: T, i: number) => boolean) => boolean }, b: ArrayLike<T>) => boolean} */
export const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

const utf8 = new TextEncoder();

/** @type {(value: unknown, low: number, high: number) => value is number} */
const isNumber = (value, low, high) => typeof value === "number" && Number.isInteger(value) && value >= low && value <= high;
/** @type {(value: unknown, length?: number) => value is Bytes} */
const isBytes = (value, length) => value instanceof Uint8Array && value.length === (length ?? value.length);
/** @type {(value: unknown, length?: number) => value is unknown[]} */
const isList = (value, length) => Array.isArray(value) && value.length === (length ?? value.length);

/** @type {(...parts: Uint8Array[]) => Bytes} */
export const concat = (...parts) => concatAll(parts);

/** @param {Uint8Array[]} parts */
export function concatAll(parts) {
  const whole = new Uint8Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * Write each part after its length. Signatures cover the result.
 * @param {...(string | Bytes)} parts
 */
export function frame(...parts) {
  return concat(...parts.flatMap((part) => {
    const raw = typeof part === "string" ? utf8.encode(part) : part;
    const length = new Uint8Array(8);
    new DataView(length.buffer).setBigUint64(0, BigInt(raw.length), true);
    return [length, raw];
  }));
}

/** @type {(bytes: Bytes) => Promise<Bytes>} */
export const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

/** @type {(text: string) => Promise<Bytes>} */
export const digestOf = (text) => sha256(utf8.encode(text));

/**
 * Say whether the owner of a public key signed these parts for this purpose.
 * @param {string} publicKey
 * @param {Bytes} signature
 * @param {Purpose} purpose
 * @param {...(string | Bytes)} parts
 */
export async function isSigned(publicKey, signature, purpose, ...parts) {
  const holder = await crypto.subtle.importKey("raw", unhex(publicKey), "Ed25519", false, ["verify"]);
  return crypto.subtle.verify("Ed25519", holder, signature, frame(PROTOCOL, purpose, ...parts));
}

/**
 * Return a short form of a key that people can compare, for instance over the telephone.
 * @type {(publicKey: string) => Promise<string>}
 */
export const fingerprint = async (publicKey) => hex((await sha256(unhex(publicKey))).slice(0, FINGERPRINT_BYTES)).replace(/.{4}(?=.)/g, "$& ");

// --- MessagePack: whole numbers, texts, byte strings and arrays, each in its shortest encoding ---------------------

/** @typedef {[most: number, tag: number, bytes: number][]} Sizes */

/** @param {number} value @param {Sizes} sizes */
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

/** @type {(value: unknown) => Bytes} */
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
  if (isBytes(value)) {
    return concat(binary(value.length), value);
  }
  if (!isList(value)) throw new Malformed("not a message");
  const head = value.length < 16 ? Uint8Array.of(0x90 | value.length) : sized(value.length, [[65535, 0xdc, 2]]);
  return concat(head, ...value.map(pack));
}

/** @param {Bytes} bytes @returns {unknown} */
export function unpack(bytes) {
  let at = 0;
  /** @type {(count: number) => number} */
  const number = (count) => {
    if (at + count > bytes.length) throw new Malformed("cut short");
    let value = 0;
    for (let i = 0; i < count; i++) value = value * 256 + bytes[at++];
    return value;
  };
  /** @type {(count: number) => Bytes} */
  const slice = (count) => {
    if (at + count > bytes.length) throw new Malformed("cut short");
    return bytes.slice(at, (at += count));
  };
  /** @type {(depth: number) => unknown} */
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

/** @param {Bytes} raw */
function text(raw) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(raw);
  } catch {
    throw new Malformed("not UTF-8");
  }
}

// --- vectors ---------------------------------------------------------------------------------------------------------

/** @type {(bits: number, count: number) => number} */
export const packedBytes = (bits, count) => Math.ceil((bits * count) / 8);

/** @param {bigint[]} values @param {bigint} q */
export function packVector(values, q) {
  const bits = bitsOf(q);
  const out = new Uint8Array(packedBytes(bits, values.length));
  let buffer = 0n, filled = 0n, at = 0;
  for (const value of values) {
    buffer |= value << filled;
    for (filled += BigInt(bits); filled >= 8n; filled -= 8n, buffer >>= 8n) out[at++] = Number(buffer & 255n);
  }
  if (filled > 0n) out[at] = Number(buffer);
  return out;
}

/** @param {Bytes} bytes @param {bigint} q @param {number} count @returns {bigint[]} */
export function unpackVector(bytes, q, count) {
  const bits = bitsOf(q);
  if (bytes.length !== packedBytes(bits, count)) throw new Malformed(`got ${bytes.length} bytes, expected ${packedBytes(bits, count)}`);
  const padded = new DataView(concat(bytes, new Uint8Array(16)).buffer);
  const mask = (1n << BigInt(bits)) - 1n;
  const values = new Array(count);
  for (let i = 0, bit = 0; i < count; i++, bit += bits) {
    const at = Math.floor(bit / 8), shift = BigInt(bit % 8); // `>>` would cut a number of bits above 2^31
    let word = padded.getBigUint64(at, true) >> shift;
    if (bits + (bit % 8) > 64) word |= padded.getBigUint64(at + 8, true) << (64n - shift);
    values[i] = word & mask;
    if (values[i] >= q) throw new Malformed("a symbol of q or more");
  }
  const spare = bytes.length * 8 - bits * count;
  if (spare && bytes[bytes.length - 1] >> (8 - spare)) throw new Malformed("bits set after the last symbol");
  return values;
}

// --- messages and tickets --------------------------------------------------------------------------------------------

const SERVICE = new RegExp(SERVICE_PATTERN);

/** @param {unknown} servers @param {number} fewest */
function checkedServers(servers, fewest = 1) {
  const whole = isList(servers) && servers.length >= fewest && servers.length <= MOST_SERVERS ? servers : [null];
  const numbers = whole.filter((n) => isNumber(n, 1, MOST_SERVERS));
  if (numbers.length < whole.length || !numbers.every((n, i) => i === 0 || n > numbers[i - 1])) throw new Malformed("servers");
  return numbers;
}

/** @type {(request: Request) => Bytes} */
export const encodeRequest = ({ kind, server, terms, key, ticket, request, among, secret, body }) =>
  pack([VERSION, kind, server, terms, key, ticket, request, among, secret, body]);

/** @type {(length: number) => Bytes} */
const binary = (length) => sized(length, [[255, 0xc4, 1], [65535, 0xc5, 2], [2 ** 32 - 1, 0xc6, 4], [2 ** 53 - 1, 0xc1, 8]]);

/**
 * Return the bytes of a request before a body of this length.
 * @param {Request} request
 * @param {number} length
 */
export const requestHead = (request, length) => concat(encodeRequest({ ...request, body: new Uint8Array() }).slice(0, -2), binary(length));

/** @type {(reply: Reply) => Bytes} */
export const encodeReply = ({ kind, server, ticket, request, among, body }) => pack([VERSION, kind, server, ticket, request, among, body]);

/**
 * Return the bytes of a reply before a body of this length, so that the body can be read part by part.
 * @param {Omit<Reply, "body">} reply
 * @param {number} length
 */
export const headOf = (reply, length) => concat(encodeReply({ ...reply, body: new Uint8Array() }).slice(0, -2), binary(length));

/** @param {Bytes} bytes @param {ReplyKind} expected @returns {Reply} */
export function decodeReply(bytes, expected) {
  const fields = unpack(bytes);
  if (!isList(fields, 7)) throw new Malformed("not seven fields");
  const [version, kind, server, ticket, request, among, body] = fields;
  const fine = version === VERSION && kind === expected && isNumber(server, 1, MOST_SERVERS) && isBytes(ticket, ID_BYTES)
    && isNumber(request, 0, MOST_RECORDS) && isBytes(body);
  if (!fine) throw new Malformed(`not a message of kind ${expected}`);
  return { kind: expected, server, ticket, request, among: checkedServers(among), body };
}

/** @param {string} textOfTicket @returns {Ticket} */
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
  const [signed, signature] = isList(outer, 2) ? outer : [];
  if (!isBytes(signed) || !isBytes(signature) || signature.length > SIGNATURE_BYTES) throw new Malformed("not a ticket");
  const fields = unpack(signed);
  if (!isList(fields, 8)) throw new Malformed("not a ticket");
  const [version, id, expires, service, servers, reveal, liars, k] = fields;
  const fine = version === VERSION && isBytes(id, ID_BYTES) && isNumber(expires, 0, Number.MAX_SAFE_INTEGER) && isNumber(liars, 0, MOST_ROBUST)
    && isNumber(k, 1, MOST_RECORDS) && typeof service === "string" && SERVICE.test(service) && typeof reveal === "string" && [...reveal].length <= LONGEST_REVEAL;
  if (!fine) throw new Malformed("not a ticket");
  return { id, expires, service, servers: checkedServers(servers, 0), reveal, liars, k, signed, signature, bytes };
}

/**
 * Make a ticket without the issuer's signature; only open mode accepts it.
 * @param {Omit<Claims, "liars"> & { liars?: number }} claims
 * @returns {Ticket}
 */
export function makeTicket({ expires, service, servers, reveal, k, liars = 0 }) {
  const id = crypto.getRandomValues(new Uint8Array(ID_BYTES)), signature = new Uint8Array();
  const signed = pack([VERSION, id, expires, service, servers, reveal, liars, k]);
  return { id, expires, service, servers, reveal, liars, k, signed, signature, bytes: pack([signed, signature]) };
}
