// Every text that the page shows, in English. The other languages have the same keys.
// Others can see what a person does after an answer. So no text sends a person to the institution because of an answer.

export const ENGLISH = {
  language: "English", // the language's own name
  direction: "ltr",
  languages: "Language",
  title: "What would have been accepted?",
  lead: "You were rejected. Here you find the nearest case that was accepted, and nobody finds out what you asked, unless the servers work together.",
  /** @type {(who: string) => string[]} */
  steps: (who) => [
    "Fill in what was true when you were rejected.",
    "Say what could change, and what must stay as it is.",
    `Check your question and ask it. Your computer asks ${who}. Each of them gets only numbers that look random, and cannot read what you typed.`,
  ],
  stepsOpen: "Each question is free here: no ticket is needed.",
  stepsTicket: "Each question costs one ticket.",
  good: "What do these words mean?",
  ticketWhat: "A ticket",
  ticketMeans: "is a line of letters and digits that the institution gave you. It pays for one question, as a stamp pays for one letter. It does not say what you ask.",
  serversWhat: "The servers",
  /** @type {(who: string) => string} */
  serversMean: (who) => `are computers of organisations that do not work together: ${who}. They see that somebody asks, when, with which ticket, and from which internet address. If they put together what they got, they could read your question. If you do not trust that they keep apart, do not ask.`,
  mayWhat: "“May change”",
  mayMeans: "means that the answer may name another value here. “Must stay as it is” means that it will not. If little may change, perhaps no accepted case fits.",
  hardWhat: "“How hard?”",
  hardMeans: "tells your computer what to leave alone if there is another way. The answer is the accepted case with the least effort for you.",
  /** @type {(tickets: number | null, rows: number) => string} */
  lasts: (tickets, rows) => tickets ? `About the institution: it gives away more than one accepted case with each answer. Somebody with ${tickets} tickets could rebuild all of them.` : `About the institution: it gives away ${rows === 1 ? "one accepted row" : `${rows} accepted rows`} with each ticket, and nothing else of its data.`,
  lastsRegions: "About the institution: it gives away one region with each ticket, in which its model accepts everybody, and nothing else of its data.",
  /** @type {(host: string) => string} */
  trust: (host) => `This page comes from ${host}. You trust ${host} each time you load it.`,
  download: "Download it as one file and keep it.",
  loading: "Asking the servers what they offer …",
  asking: "Asking. What you typed leaves this computer only scrambled, for each server in another way …",
  receiving: "Receiving the answer",
  sending: "Preparing and sending …",
  working: "The servers work the answer out together. They see neither your question nor the answer …",
  /** @type {(bytes: number) => string} */
  evaluating: (bytes) => `Working the answer out on this computer, ${(bytes / 2 ** 20).toLocaleString("en", { maximumFractionDigits: 1 })} MiB of it. It says which case is nearest, and nothing of the others. `,
  slow: "Still waiting for a server. The connection is slow, or the server is busy.",
  again: "Try again",
  connect: "Use these addresses",
  addresses: "Addresses of the servers, one a line",

  // --- the form -----------------------------------------------------------------------------------------------------
  otherGroup: "More questions",
  choose: "Please choose",
  rather: "I would rather not say, or it does not apply",
  yes: "yes",
  no: "no",
  missing: "not given",
  /** @type {(low: string, high: string) => string} */
  hint: (low, high) => `${low} to ${high}`,
  change: { free: "May change", up: "May only go up", down: "May only go down", locked: "Must stay as it is" },
  fixed: "Always stays as it is, by the institution's rule",
  /** @type {(title: string) => string} */
  may: (title) => `Could this change: ${title}?`,
  reluctance: "How hard would a change be?",
  scale: ["easy", "not so easy", "hard", "very hard", "nearly impossible"],
  /** @type {(hard: string, limits: string) => string} */
  summary: (hard, limits) => `A change would be ${hard}${limits ? `; ${limits}` : ""}`,
  between: "It must stay between",
  and: "and",
  from: "Lowest",
  to: "Highest",
  /** @type {(low: string, high: string) => string} */
  limits: (low, high) => (low && high ? `only ${low} to ${high}` : low ? `at least ${low}` : high ? `at most ${high}` : ""),
  fewest: "Ask for the fewest changes first, and only then for the smallest",
  ticket: "Your tickets, one a line. Each pays for one question.",
  /** @type {(count: number) => string} */
  tickets: (count) => (count > 1 ? `${count} tickets left. Save your other tickets now: this page forgets them when you close it.` : count ? "1 ticket left" : "No ticket here"),
  toReview: "Check my question",
  toReviewWhy: "Nothing is asked yet: you see everything once more first.",
  toTickets: "Go to the box for tickets",
  pasteHere: "Paste one here.",
  unfilled: "Please fill this in.",
  /** @type {(low: string, high: string) => string} */
  numeral: (low, high) => `Please type a number from ${low} to ${high}.`,
  /** @type {(decimal: string) => string} */
  ambiguous: (decimal) => `This number can be read in two ways. Please type it like 9000, or with decimals like ${decimal}.`,
  /** @type {(names: string) => string} */
  todo: (names) => `Still to fill in: ${names}.`,
  /** @type {(title: string) => string} */
  quoted: (title) => `“${title}”`,
  /** @type {(title: string, low: string, high: string) => string} */
  range: (title, low, high) => `${title} must be between ${low} and ${high}.`,
  /** @type {(title: string) => string} */
  crossed: (title) => `${title}: the lowest value must not be above the highest.`,

  // --- before a question is sent ------------------------------------------------------------------------------------
  review: {
    title: "This is what your computer will ask about",
    cost: "It costs your ticket, and a ticket that is used does not come back. So look at every line.",
    costOpen: "Look at every line. No ticket is needed.",
    yours: "Your value",
    may: "Could it change?",
    fewest: "You ask for the fewest changes first.",
    /** @type {(number: number) => string} */
    unlike: (number) => `You ask for another way than answer ${number}.`,
    /** @type {(who: string) => string} */
    who: (who) => `Your computer asks ${who}. Nothing has left it yet.`,
    ask: "Ask now: this uses one ticket",
    askOpen: "Ask now",
    back: "Go back and change something",
  },
  anew: "Back to the form",

  // --- servers and bytes --------------------------------------------------------------------------------------------
  /** @type {(number: number, who: string) => string} */
  server: (number, who) => `Server ${number}, ${who}`,
  keys: "The servers' keys. Compare them with what each server's operator publishes. If one organisation controls both web addresses, it can read your question.",
  /** @type {(n: number, up: number, down: number) => string} */
  message: (n, up, down) => `Message ${n}: ${up.toLocaleString("en")} bytes sent, ${down.toLocaleString("en")} received`,
  /** @type {(bytes: number) => string} */
  up: (bytes) => `Sent, ${bytes.toLocaleString("en")} bytes of it; around it are the ticket and a secret of this question, which are not shown`,
  /** @type {(bytes: number) => string} */
  down: (bytes) => `Received, ${bytes.toLocaleString("en")} bytes of it`,
  left: "What left this computer",
  /** @type {(server: number) => string} */
  leftLead: (server) => `Here are the bytes that server ${server} got, and then the same question, scrambled again for the same server. The bytes are different each time. `
    + "To that server they look like random numbers.",
  leftWhy: "Only one server's bytes are shown, because the bytes of two servers together tell the question. Do not show even these to another server.",
  /** @type {(server: string, up: number, down: number) => string} */
  sent: (server, up, down) => `${server}: ${up.toLocaleString("en")} bytes sent, ${down.toLocaleString("en")} received`,
  /** @type {(server: number) => string} */
  seen: (server) => `What server ${server} saw`,
  /** @type {(server: number) => string} */
  otherwise: (server) => `The same question, scrambled again for server ${server}`,
  /** @type {(servers: string) => string} */
  spare: (servers) => `${servers} does not answer. That does not matter if your ticket is for the others.`,
  /** @type {(servers: string) => string} */
  spared: (servers) => `${servers} did not answer. Your ticket is for the others, so nothing was missed.`,
  /** @type {(numbers: string) => string} */
  lied: (numbers) => `Server ${numbers} answered wrongly. Its answer was corrected with the others'.`,

  // --- the answer ---------------------------------------------------------------------------------------------------
  feature: "What",
  now: "Now",
  after: "Accepted at",
  /** @type {(percent: number) => string} */
  share: (percent) => `${percent} % of the effort`,
  bars: "The bars show how much of the effort each change is.",
  unchanged: "Everything else stays as it is.",
  same: "An accepted case has the same values as yours in everything that counts.",
  answer: "The nearest accepted case",
  region: "The smallest change that would have been accepted",
  within: "You are in a region in which everybody is accepted.",
  /** @type {(title: string, words: string) => string} */
  condition: (title, words) => `${title}${/^(at most|at least|from) /.test(words) ? " " : ": "}${words}`,
  stays: "everything else may stay as it is",
  bands: "In the last column the band shows what is accepted, the ring where you are now, and the dot the smallest change.",
  keep: "Keep within these conditions, as you do now:",
  noPromise: "This is no promise, and it need not be the reason why you were rejected.",
  details: "Details",
  /** @type {(said: import("../deployment.js").Certificate) => string} */
  proven: ({ sampled }) => (sampled ? "The institution's program accepted everything that was tried within these conditions; this is not proven." : "The institution's program accepts everybody who meets these conditions; this was proven."),
  /** @type {(said: import("../deployment.js").Certificate) => string} */
  certified: ({ model, sampled, at_most: atMost }) => {
    const which = `the model with the digest ${model.slice(0, 16)}…`;
    if (!sampled) return `It is certified that ${which} accepts everybody in this region.`;
    return `This is not certified: ${which} accepted ${sampled.toLocaleString("en")} points sampled in this region. `
      + `With a confidence of 95 %, it rejects at most ${Number((atMost / 1e4).toPrecision(4))} % of them.`;
  },
  /** @type {(place: number) => string} */
  next: (place) => `The accepted case in place ${place}`,
  nearly: "An accepted case near yours, approximately the nearest",
  regionNearly: "A change that would have been accepted, approximately the smallest",
  approximate: "This is approximate: a nearer accepted row may exist.",
  approximateRegion: "This is approximate: a nearer region may exist.",
  /** @type {(title: string, value: string) => string} */
  outside: (title, value) => `The accepted row itself has ${value} for ${title}: outside the range that you asked for, but in the same level as its end.`,
  nothing: "No accepted case fits your limits",
  nothingAtAll: "No accepted case fits",
  /** @type {(names: string, limited: boolean) => string} */
  ruledOut: (names, limited) => `The closest accepted case has something else for: ${names}. The institution's rules do not let that change. `
    + (limited ? "Changing your own limits may help or not: nobody can know before asking." : "You set no limits of your own, so no accepted case fits, and asking again will not help."),
  /** @type {(names: string) => string} */
  relax: (names) => `The closest one goes beyond what is allowed for: ${names}. To allow more, change the limits that you set there; limits that others set stay. `
    + "Use another ticket for that, best on another day: asking again at once tells the servers that nothing fitted.",
  /** @type {(names: string) => string} */
  beyond: (names) => `This one goes beyond what is allowed for: ${names}.`,
  raise: "raise", lower: "lower", alter: "change",
  /** @type {(verb: string, title: string, before: string, after: string) => string} */
  changed: (verb, title, before, after) => `${verb} ${title} from ${before} to ${after}`,
  /** @type {(parts: string[]) => string} */
  joined: (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`),
  sets: {
    anything: "anything",
    given: "given, whatever it is",
    /** @type {(value: string) => string} */
    most: (value) => `at most ${value}`,
    /** @type {(value: string) => string} */
    least: (value) => `at least ${value}`,
    /** @type {(value: string) => string} */
    about: (value) => `about ${value}`,
    /** @type {(value: string) => string} */
    exactly: (value) => `exactly ${value}`,
    /** @type {(low: string, high: string) => string} */
    between: (low, high) => `from ${low} to ${high}`,
    /** @type {(said: string) => string} */
    but: (said) => `anything but ${said}`,
    /** @type {(parts: string[]) => string} */
    either: (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} or ${parts.at(-1)}`),
  },

  // --- what goes wrong ----------------------------------------------------------------------------------------------
  /** @type {Record<string, [heading: string, text: string]>} */
  trouble: {
    unreachable: ["A server does not answer", "It may be down, or your connection is. Nothing is lost: Try again goes on where this stopped."],
    peer_unreachable: ["The servers cannot work together", "The two servers cannot reach each other right now. Your ticket is not used. Try again in a minute."],
    broke_off: ["The servers broke off", "They began several times and never finished, so nothing was answered. Use another of the tickets that you were given, best on another day."],
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
    ticket_missing: ["A ticket is needed", "The institution gives you some. Paste one into the box for tickets; nobody learns what you ask with it."],
    ticket_none_left: ["No ticket is left here", "Every ticket that was pasted is used. If you were given more, paste one into the box for tickets."],
    ticket_forged: ["This is not a ticket of this institution", "Perhaps a part of it is missing. Copy it whole, or ask the institution."],
    ticket_used: ["This ticket was already used", "Paste another one below. Your form is kept."],
    ticket_expired: ["This ticket has expired", "Take it out of the field and use the next, or ask the institution for new ones."],
    ticket_for_another_service: ["This ticket is for another service", "It is not for what these servers offer. Look whether this is the right page, or ask the institution."],
    ticket_for_other_servers: ["This ticket is for other servers", "This page asks its own. Open the page of a server that the ticket is for, or ask the institution."],
    ticket_not_offered: ["These servers do not take this ticket", "It asks for something that they do not offer. Use another of the tickets that you were given."],
    other_terms: ["The institution has renewed what it offers", "Nothing was answered, and your ticket is not used up. Copy your tickets and keep them, because reloading clears them here. Then reload this page and use the same ticket."],
    other_key: ["The institution has renewed the servers' common key", "Nothing was answered, and your ticket is not used up. Copy your tickets and keep them, because reloading clears them here. Then reload this page and use the same ticket."],
    renewed: ["The institution has renewed what it offers", "That was while you asked, so this ticket is used up. Copy your other tickets and keep them, because reloading clears them here. Then reload this page and use the next one."],
    renewed_since: ["The institution has renewed what it offers", "That was after this answer, so nothing was asked and no ticket was used. Use the form to ask anew."],
    too_often: ["This question was sent too often", "A server answers the same bytes only a limited number of times. Use another of the tickets that you were given."],
    tampered: ["A server answered falsely", "One of the servers sent a wrong answer, so nothing is shown. Nobody has read what you typed. Do not ask again right away, and do not tell the institution: that would show that the lie was noticed. If you have another ticket, use it another day."],
    too_many_liars: ["Servers answered falsely", "Several servers sent wrong answers, too many to say what is right, so nothing is shown. Nobody has read what you typed. Do not ask again right away, and do not tell the institution: that would show that the lie was noticed. If you have another ticket, use it another day."],
    malformed_answer: ["A server does not speak the protocol", "What it answered cannot be read. The institution has to look into it."],
    refused: ["A server refused", "It gave no reason that this page knows. Try again later."],
    input: ["Please look at these once more", "Nothing was asked, and no ticket was used."],
  },

  // --- answers that are kept, receipts, another way -----------------------------------------------------------------
  kept: {
    earlier: "Your earlier answers",
    where: "They are kept in this tab until you close it or forget them, and no server has them. Forget them before you leave a computer that others use: a browser may reopen a closed tab.",
    /** @type {(count: number) => string} */
    count: (count) => (count > 1 ? `You have ${count} earlier answers.` : "You have 1 earlier answer."),
    notKept: "This browser does not let the page keep the answer. Save it before you reload or leave.",
    /** @type {(number: number, date: string, unlike: number) => string} */
    title: (number, date, unlike) => `Answer ${number}, ${unlike ? `another way than answer ${unlike}, ` : ""}of ${date}`,
    save: "Save as a file",
    print: "Print",
    copy: "Copy as text",
    copied: "Copied.",
    notCopied: "The browser does not allow copying here. Save it as a file instead.",
    forget: "Forget this answer",
    forgotten: "Forgotten.",
    forgetAll: "Forget all answers",
    receipt: "Save a receipt",
    withQuestion: "with my own values in it, which everybody who gets the receipt can read",
    receiptWhy: "A receipt shows others, such as a supervisory authority, that the institution signed this answer. It holds no ticket. Anybody can check it below, or with “counterveil verify”.",
    another: "Another way",
    anotherWhy: "Ask for a different answer. That costs your next ticket. The servers see that somebody asks again, so another day is better than now.",
    dearer: "Avoid these changes if you can (you may get the same answer)",
    stays: "What this answer changes must stay as it is",
    staysRisk: "(there may be no such case, and then the ticket is used all the same)",
    /** @type {(number: number, stays: string) => string} */
    sameAs: (number, stays) => `This is the same answer as answer ${number}. To get a different one, choose “${stays}”.`,
    ask: "Ask for another way",
    beside: "Your answers side by side",
    yours: "Yours",
    /** @type {(number: number, place: number) => string} */
    column: (number, place) => (place > 1 ? `Answer ${number}, place ${place}` : `Answer ${number}`),
    same: "as it is",
    besideNote: "What no answer changes is left out.",
  },
  check: {
    title: "Check a receipt",
    lead: "Choose the file of a receipt. It is checked on this computer and is sent to nobody. This works without a connection.",
    file: "The receipt",
    theirs: "The person's value",
    right: "The institution signed this",
    rightOther: "Every signature holds, but with another key",
    ours: "Every signature holds, with the key of the institution that this page is for.",
    others: "This page does not know the key. Compare its fingerprint with the one that the institution publishes. If it is another, somebody else signed this.",
    key: "The key's fingerprint:",
    /** @type {(date: string) => string} */
    date: (date) => `The date, by the word of whoever made the receipt: ${date}`,
    bold: "What the answer changes is bold. Smaller differences do not count.",
    /** @type {(place: number, count: number) => string} */
    place: (place, count) => `Record ${place} of ${count}`,
    proves: "What this proves",
    provesList: ["The holder of this key signed the terms in the receipt.", "The same key signed each record as an accepted row or region of the database that the terms name."],
    not: "What this does not prove",
    notList: [
      "Whose key that is, unless you compared it.",
      "Who asked, when, and what: the date, and the values if they are there, are the word of whoever made the receipt.",
      "That no other accepted row or region is nearer, or was answered too.",
      "That the institution must accept anybody, or that it still decides as it did when it signed.",
    ],
    wrong: "This receipt is not right",
    altered: "The contents were changed.",
    noReceipt: "This file is not a receipt.",
  },

  // --- the operator's page ------------------------------------------------------------------------------------------
  operator: {
    title: "This server",
    lead: "What it answered and what that gave away. There is no question content here, because there is none.",
    token: "Operator's token",
    open: "Open",
    wrong: "That is not this server's token.",
    silent: "The server does not answer.",
    now: "Now",
    answered: "Questions answered",
    refused: "Refused",
    /** @type {(minutes: string, most: string) => string} */
    minutes: (minutes, most) => `${minutes} min, at most ${most} a minute`,
    names: {
      server: "server", health: "health", questions: "questions answered", tickets: "tickets", held: "requests held in the ledger", given: "given away so far",
      told: "beside that", attacks: "known attacks would need", offer: "offer", budget: "budget", linked: "linked to", attempts: "attempts since the start",
    },
    /** @type {(number: number, servers: number, hours: string) => string} */
    server: (number, servers, hours) => `${number} of ${servers}, up for ${hours} hours`,
    ready: "ready",
    /** @type {(count: string) => string} */
    questions: (count) => `${count} since the ledger was made`,
    ticketsOpen: "open: everyone makes their own",
    /** @type {(used: string) => string} */
    used: (used) => `${used} used`,
    /** @type {(left: string, issued: string) => string} */
    left: (left, issued) => `${left} left of ${issued}`,
    /** @type {(most: string, rows: string) => string} */
    rows: (most, rows) => `at most ${most} of ${rows} rows, each of which is a person's`,
    /** @type {(most: string, regions: string) => string} */
    regions: (most, regions) => `at most ${most} of ${regions} regions, none of which is a person's row`,
    /** @type {(bits: string) => string} */
    told: (bits) => `${bits} bits about the others`,
    nothing: "nothing about the others",
    /** @type {(tickets: string, k: number, regions: boolean) => string} */
    slowest: (tickets, k, regions) => `${tickets} tickets or more: none that we know is faster than ${k} ${regions ? "region" : "row"}${k === 1 ? "" : "s"} a ticket`,
    /** @type {(tickets: number, regions: boolean) => string} */
    rebuilt: (tickets, regions) => `${tickets.toLocaleString("en")} ticket${tickets === 1 ? "" : "s"} of one applicant, to rebuild the ${regions ? "regions" : "rows"}`,
    never: "never",
    /** @type {(digest: string, rows: string, ends: string) => string} */
    terms: (digest, rows, ends) => `terms ${digest}, ${rows} records, end: ${ends}`,
    /** @type {(key: string, state: string, ends: string) => string} */
    key: (key, state, ends) => `common key ${key} ${state}, end: ${ends}`,
    /** @type {Record<string, string>} */
    states: { newest: "the newest", shown: "shown", ended: "ended", pending: "pending", active: "active", retired: "retired" },
    /** @type {(used: string, budget: string) => string} */
    budget: (used, budget) => `${used} of ${budget} bits are used`,
    /** @type {(percent: string) => string} */
    percent: (percent) => `Given away: ${percent} % of the budget`,
    /** @type {(server: number, connections: number, milliseconds: string) => string} */
    link: (server, connections, milliseconds) => `server ${server}: ${connections} connection${connections === 1 ? "" : "s"}${milliseconds ? `, ${milliseconds} ms there and back` : ""}`,
    /** @type {(complete: string, brokeOff: string, rounds: string, mebibytes: string) => string} */
    attempts: (complete, brokeOff, rounds, mebibytes) => `${complete} complete, ${brokeOff} broke off; ${rounds} rounds, ${mebibytes} MiB from other servers`,
  },
};
