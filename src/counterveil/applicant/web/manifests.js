// What servers say of themselves: manifests are read and checked, and the newest offer that all servers have is found.

import { ID_BYTES, MANIFEST_LIMIT, MANIFEST_PATH, MANIFESTS_LIMIT, MANIFESTS_PATH, MOST_OFFERS, PUBLIC_KEY_BYTES, SIGNATURE_BYTES } from "./constants.js";
import { everyone, request, Trouble } from "./network.js";
import { isWords } from "./schema.js";
import { textOf } from "./strings.js";
import { digestOf, frame, isSigned, unhex } from "./wire.js";

/**
 * @typedef {import("./client.js").Met} Met
 * @typedef {import("./client.js").Session} Session
 * @typedef {import("./network.js").Options} Options
 * @typedef {import("./wire.js").Bytes} Bytes
 * @typedef {import("./wire.js").Manifest} Manifest
 * @typedef {import("./wire.js").Terms} Terms
 * @typedef {import("./strings.js").Text} Text
 */

/**
 * Say whether a host is this machine. Nobody else can read what is sent to it.
 * @type {(hostname: string) => boolean}
 */
export const isLoopback = (hostname) => /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);

/**
 * Return an address in the one way in which addresses are compared. It refuses plain http to other machines, because
 * somebody on the way to both servers could read the question.
 * @param {string} text
 */
export function addressOf(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (!url || !["http:", "https:"].includes(url.protocol)) throw new Trouble("addresses");
  const address = url.origin + url.pathname.replace(/\/+$/, "");
  if (url.protocol === "http:" && !isLoopback(url.hostname)) throw new Trouble("plain", "", address);
  return address;
}

/** @type {(text: unknown, bytes: number) => text is string} */
export const isHex = (text, bytes) => typeof text === "string" && text.length === 2 * bytes && /^[0-9a-f]*$/.test(text);
/** @type {(values: unknown, count: number, isFine: (value: unknown) => boolean) => boolean} */
const areDifferent = (values, count, isFine) => Array.isArray(values) && values.every(isFine) && values.length === count && new Set(values).size === count;

/** @type {(said: Bytes) => unknown} */
const parsed = (said) => JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(said));

/**
 * Say whether these are names of those who run the servers, each another; or none, which is fine too.
 * @type {(names: unknown, count: number) => names is Text[] | undefined}
 */
export const areNames = (names, count) => names === undefined
  || (Array.isArray(names) && names.every((each) => isWords(each) && each) && areDifferent(names.map((each) => JSON.stringify(typeof each === "string" ? { en: each } : each)), count, () => true));

/**
 * Return what the issuer signs beside the digest of the terms: addresses, and names if there are any.
 * @param {import("./wire.js").SignedTerms} issued
 */
export function signedBeside({ addresses, names }) {
  /** @type {(name: Text) => string} */
  const written = (name) => JSON.stringify(typeof name === "string" ? name : Object.fromEntries(Object.entries(name).sort(([a], [b]) => (a < b ? -1 : 1))));
  return [frame(...addresses), ...(names ? [frame(...names.map(written))] : [])];
}

/**
 * Return who runs the server at an address, or the address if the terms do not say.
 * @param {Pick<Session, "issued">} session
 * @param {string} address
 */
export function calledAt({ issued: { addresses, names } }, address) {
  const name = names?.[addresses.map(addressOf).indexOf(address)];
  return name ? textOf(name) : address;
}

/** @param {() => unknown} read @param {string} server @returns {Manifest} */
function checkedManifest(read, server) {
  try {
    const manifest = /** @type {Manifest} */ (read());
    const { key, instance, software, issued, signature } = manifest;
    const fine = Number.isInteger(manifest.server) && isHex(key, ID_BYTES) && isHex(instance, ID_BYTES) && isHex(signature, SIGNATURE_BYTES) && typeof software === "string"
      && typeof issued.terms === "string" && isHex(issued.signature, SIGNATURE_BYTES) && areDifferent(issued.addresses, issued.addresses.length, (each) => typeof each === "string") && areNames(issued.names, issued.addresses.length);
    if (!fine) throw new Error();
    return manifest;
  } catch {
    throw new Trouble("malformed_answer", "manifest", server);
  }
}

/** The terms and the common key of a manifest: what servers must have in common. @type {(manifest: Manifest) => string} */
export const offerOf = ({ issued, key }) => JSON.stringify([issued, key]);

/** When terms begin, 0 if they do not say. @type {(manifest: Manifest) => number} */
function beginning({ issued }) {
  try {
    const { begins } = JSON.parse(issued.terms);
    return Number.isSafeInteger(begins) ? begins : 0;
  } catch {
    return 0;
  }
}

/** The addresses in a manifest's terms, as they are compared. @type {(manifest: Manifest) => string[]} */
const addressesOf = ({ issued }) => issued.addresses.map((address) => (URL.canParse(address) ? new URL(address).origin + new URL(address).pathname.replace(/\/+$/, "") : ""));

/**
 * Return the newest offer that all its servers show, of those that were reached: a manifest of each, by address; null if there
 * is none. Newest are the terms that begin last. Of several keys, the first server's choice counts: its list has the newest
 * last.
 * @param {Map<string, Manifest[]>} lists by address
 */
export function newest(lists) {
  const shown = [...lists].map(([server, list]) => /** @type {const} */ ([server, new Map(list.map((manifest) => [offerOf(manifest), manifest]))]));
  let found = null, begins = -1;
  for (const [offer, manifest] of shown.flatMap(([, list]) => [...list])) {
    const own = addressesOf(manifest), theirs = shown.filter(([server]) => own.includes(server));
    const isCommon = theirs.length >= 2 && theirs.every(([, list]) => list.has(offer)) && theirs[0][1].has(offer);
    if (!isCommon || beginning(manifest) < begins || lists.get(theirs[0][0])?.includes(manifest) === false) continue;
    begins = beginning(manifest);
    found = new Map(theirs.map(([server, list]) => [server, /** @type {Manifest} */ (list.get(offer))]));
  }
  return found;
}

/**
 * Return one manifest of each server, by address: the newest of each, or if these differ, the newest that they have in common.
 * @param {Map<string, Manifest>} met the newest of each
 * @param {Options} [options]
 */
export async function inCommon(met, options) {
  const servers = [...met.keys()], manifests = [...met.values()];
  if (manifests.every((manifest) => offerOf(manifest) === offerOf(manifests[0]))) return met;
  const lists = await everyone(servers.map((server) => visitAll(server, options)));
  return newest(new Map(servers.map((server, i) => [server, lists[i]]))) ?? met;
}

/**
 * Refuse servers that do not agree, or that cannot prove who they are. Return the terms' digest, and the terms.
 * @param {Met} met
 */
export async function agreed({ servers, manifests, trust: { issuer, operators } }) {
  const [{ issued, key }] = manifests, numbers = manifests.map((manifest) => manifest.server);
  for (const [i, manifest] of manifests.entries()) {
    if (manifest.key !== key || JSON.stringify(manifest.issued) !== JSON.stringify(issued)) throw new Trouble("disagree", "", servers[i]);
  }
  if (new Set(numbers).size < numbers.length) throw new Trouble("disagree", "one answers for another");
  let digest, all, signed;
  try {
    digest = await digestOf(issued.terms);
    all = [digest, ...signedBeside(issued)];
    signed = await isSigned(issuer, unhex(issued.signature), "terms", ...all);
  } catch {
    throw new Trouble("browser"); // now, before a ticket is spent
  }
  if (!signed) throw new Trouble("impostor", "not the issuer's signature");
  /** @type {Terms} */
  const terms = JSON.parse(issued.terms);
  const { servers: count } = terms.parameters;
  const dealers = terms.dealer === undefined ? [] : [terms.dealer];
  const fine = terms.issuer === issuer && Array.isArray(terms.keys) && terms.keys.length === count && issued.addresses.length === count
    && areDifferent([...terms.keys, ...dealers], count + dealers.length, (each) => isHex(each, PUBLIC_KEY_BYTES));
  if (!fine) throw new Trouble("terms", "issuer, keys or addresses");
  for (const [i, { server, instance, software, signature }] of manifests.entries()) {
    if (server < 1 || server > count) throw new Trouble("disagree", "a number too high", servers[i]);
    const own = await isSigned(terms.keys[server - 1], unhex(signature), "manifest", String(server), key, instance, software, issued.signature, ...all);
    if (!own || addressOf(issued.addresses[server - 1]) !== servers[i]) throw new Trouble("impostor", "not its key, or not its address", servers[i]);
  }
  if (!operators.every((each) => numbers.some((n) => terms.keys[n - 1] === each))) throw new Trouble("impostor", "not the operator's key");
  return { digest, terms };
}

/** Fetch a server's manifest. @param {string} server @param {Options} [options] */
export async function visit(server, options) {
  const said = await request(server, MANIFEST_PATH, null, MANIFEST_LIMIT, options);
  return checkedManifest(() => parsed(said), server);
}

/** Fetch all manifests of a server, the newest last. @param {string} server @param {Options} [options] */
export async function visitAll(server, options) {
  const said = await request(server, MANIFESTS_PATH, null, MANIFESTS_LIMIT, options);
  let list;
  try {
    list = parsed(said);
  } catch {
    list = null;
  }
  if (!Array.isArray(list) || list.length > MOST_OFFERS) throw new Trouble("malformed_answer", "manifests", server);
  return list.map((each) => checkedManifest(() => each, server));
}
