// The box for tickets: what was pasted, and which of it looks like tickets.

import { WORDS } from "./strings.js";
import { decodeTicket } from "./wire.js";

/** Say whether a text looks like a ticket. @param {string} text */
function isTicket(text) {
  try {
    decodeTicket(text);
    return true;
  } catch {
    return false;
  }
}

export class TicketBox {
  /** @param {HTMLTextAreaElement} box @param {HTMLElement} told says how many there are */
  constructor(box, told) {
    this.box = box;
    this.told = told;
  }

  pasted() {
    return this.box.value.split(/\s+/).filter(Boolean);
  }

  /** Return the pasted words that look like tickets; if none does, the first word, so that it can be complained of. */
  tickets() {
    const all = this.pasted(), whole = all.filter(isTicket);
    return whole.length ? whole : all.slice(0, 1);
  }

  count() {
    this.told.textContent = WORDS.tickets(this.pasted().filter(isTicket).length);
  }

  /** Remove a ticket that was sent: it answers no other question. @param {string} ticket */
  remove(ticket) {
    this.write(this.pasted().filter((each) => each !== ticket));
  }

  /** Put a ticket back that no server accepted: it can still answer a question. @param {string} ticket */
  giveBack(ticket) {
    this.write([ticket, ...this.pasted().filter((each) => each !== ticket)]);
  }

  /** @param {string[]} all */
  write(all) {
    this.box.value = all.join("\n").trim();
    this.count();
  }

  /** Go to the box. */
  show() {
    this.box.focus({ preventScroll: true });
    this.box.scrollIntoView({ block: "center" });
  }
}
