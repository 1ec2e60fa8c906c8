// Vectors over F_q for any prime q below 2^62. They are BigInt, because a JavaScript number is exact only up to 2^53.

/** @type {(a: bigint, q: bigint) => bigint} */
export const mod = (a, q) => ((a % q) + q) % q;

/** @param {bigint} base @param {bigint} exponent @param {bigint} q */
export function power(base, exponent, q) {
  let result = 1n;
  for (base = mod(base, q); exponent > 0n; exponent >>= 1n, base = (base * base) % q) {
    if (exponent & 1n) result = (result * base) % q;
  }
  return result;
}

/** @type {(a: bigint, q: bigint) => bigint} */
const inverse = (a, q) => power(a, q - 2n, q);
const WITNESSES = [2n, 3n, 5n, 7n, 11n, 13n, 17n, 19n, 23n, 29n, 31n, 37n]; // they decide correctly for every n below 3.3 * 10^24

/**
 * Test for a prime with Miller-Rabin. The witnesses make the answer certain for numbers of this size.
 * @param {bigint} n
 */
export function isPrime(n) {
  if (n < 2n) return false;
  for (const p of WITNESSES) if (n % p === 0n) return n === p;
  let odd = n - 1n, twos = 0;
  for (; (odd & 1n) === 0n; odd >>= 1n) twos++;
  return WITNESSES.every((witness) => {
    let x = power(witness, odd, n);
    if (x === 1n || x === n - 1n) return true;
    for (let i = 1; i < twos; i++) {
      x = (x * x) % n;
      if (x === n - 1n) return true;
    }
    return false;
  });
}

/** @param {bigint} bound */
export function smallestPrimeAbove(bound) {
  let q = bound + 1n;
  while (!isPrime(q)) q++;
  return q;
}

/** @type {(q: bigint) => number} */
export const bitsOf = (q) => (q - 1n).toString(2).length;

/** @typedef {(q: bigint, count: number) => bigint[]} Draw */

/**
 * Draw uniform elements: mask random words, and throw away those of q or more.
 * @param {bigint} q
 * @param {number} count
 * @param {(words: BigUint64Array<ArrayBuffer>) => void} fill
 */
export function uniform(q, count, fill = (words) => crypto.getRandomValues(words)) {
  const mask = (1n << BigInt(bitsOf(q))) - 1n;
  /** @type {bigint[]} */
  const drawn = [];
  while (drawn.length < count) {
    const words = new BigUint64Array(Math.min(8192, count - drawn.length + 8));
    fill(words);
    for (const word of words) {
      const candidate = word & mask;
      if (candidate < q && drawn.length < count) drawn.push(candidate);
    }
  }
  return drawn;
}

/**
 * Q_n = s + alpha_n Z_1 + … + alpha_n^T Z_T, one vector for each server.
 * @param {bigint[]} secret
 * @param {bigint[]} alphas
 * @param {number} collusion T
 * @param {bigint} q
 * @param {Draw} draw
 */
export function split(secret, alphas, collusion, q, draw = uniform) {
  const drawn = draw(q, collusion * secret.length);
  const pads = Array.from({ length: collusion }, (_, t) => drawn.slice(t * secret.length, (t + 1) * secret.length));
  return alphas.map((alpha) =>
    secret.map((value, i) => {
      let total = 0n;
      for (let t = collusion - 1; t >= 0; t--) total = ((total + pads[t][i]) * alpha) % q;
      return (value + total) % q;
    }),
  );
}

/**
 * Split a vector into a uniform share and the rest, which add up to it mod q.
 * @param {bigint[]} secret
 * @param {bigint} q
 * @param {Draw} draw
 */
export function splitSum(secret, q, draw = uniform) {
  const noise = draw(q, secret.length);
  return [noise, secret.map((value, i) => mod(value - noise[i], q))];
}

/**
 * The Lagrange weights of the value at a point.
 * @param {bigint[]} alphas
 * @param {bigint} point
 * @param {bigint} q
 */
export function weightsAt(alphas, point, q) {
  return alphas.map((a, n) => {
    let top = 1n, bottom = 1n;
    alphas.forEach((b, m) => {
      if (m !== n) [top, bottom] = [mod(top * (b - point), q), mod(bottom * (b - a), q)];
    });
    return (top * inverse(bottom, q)) % q;
  });
}

/** @param {bigint[][]} shares @param {bigint[]} alphas @param {bigint} point @param {bigint} q */
export function valueAt(shares, alphas, point, q) {
  const weights = weightsAt(alphas, point, q);
  return shares[0].map((_, i) => {
    let total = 0n;
    for (let n = 0; n < weights.length; n++) total += weights[n] * shares[n][i];
    return total % q;
  });
}

/**
 * Find the servers whose shares lie on polynomials of this degree, leaving out at most `liars`. Return their places in
 * the list, or null if too many servers lie.
 * @param {bigint[][]} shares
 * @param {bigint[]} alphas
 * @param {number} degree
 * @param {number} liars
 * @param {bigint} q
 */
export function honest(shares, alphas, degree, liars, q) {
  for (let out = 0; out <= liars; out++) {
    for (const kept of choose([...alphas.keys()], alphas.length - out)) {
      const basis = kept.slice(0, degree + 1);
      const fits = kept.slice(degree + 1).every((n) => {
        const expected = valueAt(basis.map((m) => shares[m]), basis.map((m) => alphas[m]), alphas[n], q);
        return shares[n].every((value, i) => value === expected[i]);
      });
      if (fits) return kept;
    }
  }
  return null;
}

/** @type {(items: number[], count: number) => Generator<number[]>} */
function* choose(items, count) {
  if (count === 0) yield [];
  else for (let i = 0; i + count <= items.length; i++)
    for (const rest of choose(items.slice(i + 1), count - 1)) yield [items[i], ...rest];
}
