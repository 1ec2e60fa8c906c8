// Every text that the page shows.

// Others can see what a person does after an answer. So no text sends a person to the institution because of an answer.
const QUIETLY = "Nobody has read what you typed. Do not ask again right away, and do not tell the institution: that would show that the lie was noticed. "
  + "If you have another ticket, use it another day.";
const RENEWED = "Nothing was answered, and your ticket is not used up. Copy your tickets and keep them, because reloading clears them here. "
  + "Then reload this page and use the same ticket.";

/** @type {(count: number) => string} */
const NUMBER = (count) => count.toLocaleString("en");

export const WORDS = {
  title: "What would have been accepted?",
  lead: "Say what you have and what you could change, and this page shows the nearest case that was accepted. Your computer asks several "
    + "servers at once, so that none of them can read what you typed. They see that someone asked, when, and from which internet address.",
  /** @type {(tickets: number | null, rows: number) => string} */
  lasts: (tickets, rows) => tickets ? `About the institution: it gives away more than one row with each answer. Somebody with ${tickets} tickets could rebuild its accepted rows.` : `About the institution: it gives away ${rows === 1 ? "one accepted row" : `${rows} accepted rows`} with each ticket, and nothing else of its data.`,
  /** @type {(host: string) => string} */
  trust: (host) => `This page comes from ${host}. You trust ${host} each time you load it.`,
  download: "Download it as one file and keep it.",
  loading: "Asking the servers what they offer …",
  asking: "Asking. What you typed leaves this computer only scrambled, for each server in another way …",
  receiving: "Receiving the answer",
  sending: "Preparing and sending …",
  working: "The servers work the answer out together. They see neither your question nor the answer …",
  /** @type {(bytes: number) => string} */
  evaluating: (bytes) => `Working the answer out on this computer, ${(bytes / 2 ** 20).toFixed(1)} MiB of it. It says which case is nearest, and nothing of the others. `,
  slow: "Still waiting for a server. The connection is slow, or the server is busy.",
  ticket: "Your tickets: each answers one question",
  /** @type {(count: number) => string} */
  tickets: (count) => (count > 1 ? `${count} tickets left. ${WORDS.save}` : count ? "1 ticket left" : "No ticket here"),
  save: "Save your other tickets now: this page forgets them when you close it.",
  ask: "What would have been accepted?",
  again: "Try again",
  connect: "Use these addresses",
  addresses: "Addresses of the servers, one a line",
  change: { free: "May change", up: "May only go up", down: "May only go down", locked: "Must stay" },
  may: "Could it change?",
  reluctance: "How hard is it?",
  between: "It must lie between",
  and: "and",
  from: "Lowest",
  to: "Highest",
  hard: "hard",
  missing: "not given",
  /** @type {(addresses: string) => string} */
  asked: (addresses) => `Asks ${addresses}.`,
  /** @type {(number: number, url: string) => string} */
  server: (number, url) => `Server ${number}, ${url}`,
  keys: "The servers' keys. Compare them with what each server's operator publishes. If one organisation controls both web addresses, it can read your question.",
  /** @type {(n: number, up: number, down: number) => string} */
  message: (n, up, down) => `Message ${n}: ${NUMBER(up)} bytes sent, ${NUMBER(down)} received`,
  /** @type {(bytes: number) => string} */
  up: (bytes) => `Sent, ${NUMBER(bytes)} bytes of it; around it are the ticket and a secret of this question, which are not shown`,
  /** @type {(bytes: number) => string} */
  down: (bytes) => `Received, ${NUMBER(bytes)} bytes of it`,
  /** @type {(title: string) => string} */
  slider: (title) => `${title}, slider`,
  /** @type {(title: string, low: string, high: string) => string} */
  range: (title, low, high) => `${title}: ${low} to ${high}`,
  feature: "What",
  now: "Now",
  after: "Accepted at",
  /** @type {(percent: number) => string} */
  share: (percent) => `${percent} % of the effort`,
  bars: "The bars show how much of the effort each change is.",
  unchanged: "Everything else stays as it is.",
  same: "An accepted case has the same values as yours in everything that counts.",
  answer: "The nearest accepted case",
  region: "The nearest way in",
  within: "You are in a region in which everybody is accepted.",
  /** @type {(title: string, words: string) => string} */
  condition: (title, words) => `${title}${/^(at most|at least|from) /.test(words) ? " " : ": "}${words}`,
  stays: "everything else may stay as it is",
  bands: "In the last column the band shows what is accepted, the ring where you are now, and the dot the nearest way in.",
  fewest: "Ask for the fewest changes first, and only then for the smallest",
  lastsRegions: "About the institution: it gives away one region with each ticket, in which its model accepts everybody, and nothing else of its data.",
  /** @type {(said: import("./deployment.js").Certificate) => string} */
  certified: ({ model, sampled, at_most: atMost }) => {
    const which = `the model with the digest ${model.slice(0, 16)}…`;
    if (!sampled) return `It is certified that ${which} accepts everybody in this region.`;
    return `This is not certified: ${which} accepted ${NUMBER(sampled)} points sampled in this region. `
      + `With a confidence of 95 %, it rejects at most ${Number((atMost / 1e4).toPrecision(4))} % of them.`;
  },
  /** @type {(place: number) => string} */
  next: (place) => `The accepted case in place ${place}`,
  noOthers: "No other case that came with this answer fits your limits.",
  nearly: "An accepted case near yours, approximately the nearest",
  regionNearly: "A way in, approximately the nearest",
  approximate: "This is approximate: a nearer accepted row may exist.",
  approximateRegion: "This is approximate: a nearer region may exist.",
  /** @type {(title: string, value: string) => string} */
  outside: (title, value) => `The accepted row itself has ${value} for ${title}: outside the range that you asked for, but in the same level as its end.`,
  nothing: "No accepted case fits your limits",
  /** @type {(names: string) => string} */
  relax: (names) => `The closest one goes beyond what is allowed for: ${names}. To allow more, change the limits that you set there; limits that others set stay. `
    + "Use another ticket for that, best on another day: asking again at once tells the servers that nothing fitted.",
  /** @type {(numbers: string) => string} */
  lied: (numbers) => `Server ${numbers} answered wrongly. Its answer was corrected with the others'.`,
  left: "What left this computer",
  /** @type {(server: number) => string} */
  leftLead: (server) => `Here are the bytes that server ${server} got, and then the same question, scrambled again for the same server. The bytes are different each time. `
    + "To that server they look like random numbers.",
  leftWhy: "Only one server's bytes are shown, because the bytes of two servers together tell the question. Do not show even these to another server.",
  /** @type {(server: string, up: number, down: number) => string} */
  sent: (server, up, down) => `${server}: ${NUMBER(up)} bytes sent, ${NUMBER(down)} received`,
  /** @type {(server: number) => string} */
  seen: (server) => `What server ${server} saw`,
  /** @type {(server: number) => string} */
  otherwise: (server) => `The same question, scrambled again for server ${server}`,
  raise: "raise", lower: "lower", alter: "change",
  /** @type {(verb: string, title: string, before: string, after: string) => string} */
  changed: (verb, title, before, after) => `${verb} ${title} from ${before} to ${after}`,
  /** @type {(parts: string[]) => string} */
  joined: (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`),
  /** @type {Record<string, [heading: string, text: string]>} */
  trouble: {
    unreachable: ["A server does not answer", "It may be down, or your connection is. Nothing is lost: Try again goes on where this stopped."],
    peer_unreachable: ["The servers cannot work together", "The two servers cannot reach each other right now. Your ticket is not used. Try again in a minute."],
    broke_off: ["The servers broke off", "They began several times and never finished, so nothing was answered. Use another ticket of your batch, best on another day."],
    disagree: ["The servers do not agree", "They say different things about themselves, so nothing was asked. The institution has to look into it."],
    terms: ["These servers ask for something unsafe", "What they propose would not keep your question secret. Nothing was asked."],
    browser: ["This browser cannot check the answer", "It lacks Ed25519, or the page was not loaded over https. Nothing was asked; try a newer browser."],
    other: ["This link names other servers", "This page asks the servers that it comes with, and no others, whatever a link says. Nothing was asked. Be wary of whoever gave you the link."],
    impostor: ["A server is not the one that this page knows", "Its address, its key or the institution's signature is another. Nothing was asked."],
    plain: ["This address is not encrypted", "Somebody on the way to the servers could read your question. Nothing was asked; an address must begin with https."],
    no_issuer: ["This page is not complete", "It does not say whose servers it may trust, so it asks none. Load it anew from a server."],
    form: ["This page cannot ask these servers", "They use a form of the question that this page does not know. The command line can ask them."],
    too_large: ["This page cannot ask these servers", "A question would be larger than a page can hold. The command line can ask them."],
    addresses: ["Which servers?", "Give the addresses of two or more servers."],
    ticket_missing: ["A ticket is needed", "The institution gives you some. Paste them below; nobody learns what you ask with them."],
    ticket_none_left: ["No ticket is left here", "Every ticket that was pasted is used. If your batch has more, paste them below."],
    ticket_forged: ["This is not a ticket of theirs", "Perhaps a part of it is missing. Copy it whole, or ask the institution."],
    ticket_used: ["A ticket answers one question", "This ticket was already used. Use the next one of your batch."],
    ticket_expired: ["This ticket has expired", "Take it out of the field and use the next, or ask the institution for new ones."],
    ticket_for_another_service: ["This ticket is for another service", "It is not for what these servers offer. Look whether this is the right page, or ask the institution."],
    ticket_for_other_servers: ["This ticket is for other servers", "This page asks its own. Open the page of a server that the ticket is for, or ask the institution."],
    ticket_not_offered: ["These servers do not take this ticket", "It asks for something that they do not offer. Use the next one of your batch."],
    other_terms: ["The institution has renewed what it offers", RENEWED],
    other_key: ["The institution has renewed the servers' common key", RENEWED],
    renewed: ["The institution has renewed what it offers", "That was while you asked, so this ticket is used up. Copy your other tickets and keep them, because reloading clears them here. Then reload this page and use the next one."],
    too_often: ["This question was sent too often", "A server answers the same bytes only a limited number of times. Use another ticket of your batch."],
    tampered: ["A server answered falsely", `One of the servers sent a wrong answer, so nothing is shown. ${QUIETLY}`],
    too_many_liars: ["Servers answered falsely", `Several servers sent wrong answers, too many to say what is right, so nothing is shown. ${QUIETLY}`],
    malformed_answer: ["A server does not speak the protocol", "What it answered cannot be read. The institution has to look into it."],
    refused: ["A server refused", "It gave no reason that this page knows. Try again later."],
    input: ["Something is missing", ""],
  },
};
