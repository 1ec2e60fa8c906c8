// Take the bytes of a reply as they arrive, and check them. No byte is trusted before that.

import { Trouble } from "./network.js";
import { concatAll, decodeReply, headOf, same } from "./wire.js";

/** @typedef {import("./wire.js").Bytes} Bytes */

export const SHOWN = 2048; // bytes that are kept, to show them, of a reply that is processed as it arrives

/**
 * A reply that arrives: first the head, which must be exactly the expected one, then the body. When a connection breaks,
 * the same bytes come again from the start. Bytes of the body that were taken before are then skipped.
 */
export class Incoming {
  /** @param {Omit<import("./wire.js").Reply, "body">} right @param {number} length bytes of the body @param {number} keep how many of them to keep */
  constructor(right, length, keep) {
    this.right = right;
    this.head = headOf(right, length);
    this.length = length;
    this.keep = keep;
    /** @type {Bytes[]} */
    this.kept = [];
    this.taken = 0; // bytes of the body
    this.seen = 0; // bytes that arrived over this connection
    /** @type {Bytes[] | null} */
    this.other = null; // the beginning of a reply whose head is not the expected one
  }

  begin() {
    this.seen = 0;
    this.other = null;
  }

  /**
   * Take the next bytes; return those of the body that were not taken before.
   * @param {Bytes} data
   */
  take(data) {
    const start = this.seen, head = this.head.subarray(start, start + data.length);
    this.seen += data.length;
    if (this.other || !same(head, data.subarray(0, head.length))) {
      this.other ??= [this.head.subarray(0, start)];
      if (this.seen <= this.head.length + this.keep) this.other.push(data);
      return new Uint8Array();
    }
    const known = this.taken - Math.max(0, start - this.head.length);
    const fresh = data.subarray(head.length + known).subarray(0, this.length - this.taken);
    if (this.taken < this.keep) this.kept.push(fresh.slice(0, this.keep - this.taken));
    this.taken += fresh.length;
    return fresh;
  }

  /**
   * Return what was kept of the body; refuse a reply that is not whole.
   * @param {string | null} server its address
   */
  checked(server) {
    if (this.other) throw new Trouble("malformed_answer", this.complaint(concatAll(this.other)), server);
    const got = this.seen - this.head.length;
    if (got !== this.length) throw new Trouble("malformed_answer", `got ${got} bytes, expected ${this.length}`, server);
    return concatAll(this.kept);
  }

  /** @param {Bytes} said */
  complaint(said) {
    try {
      const { server, request } = decodeReply(said, this.right.kind);
      return `an answer of server ${server} to request ${request}, or of another length`;
    } catch {
      return "no answer";
    }
  }
}
