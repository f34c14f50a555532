/** Numbers for people. Energy is whole microjoules as bigints, times are Unix nanoseconds as bigints. */

const UJ_PER_J = 1000000n;

/** What the gateway's JSON holds: a number, or text where a double could not. @param {number|string} told */
export const integer = (told) => BigInt(told);

/** @param {bigint} uj @returns {string} joules, exactly */
export function joules(uj) {
  return `${uj / UJ_PER_J}.${String(uj % UJ_PER_J).padStart(6, "0")} J`;
}

/** @param {bigint} uj @param {number|bigint} tokens above 0 @returns {string} joules of one, to the microjoule */
export function perToken(uj, tokens) {
  const n = BigInt(tokens);
  const rounded = (2n * uj + n) / (2n * n);
  return `${rounded / UJ_PER_J}.${String(rounded % UJ_PER_J).padStart(6, "0")}`;
}

/** @type {[number, string][]} */
const SCALES = [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];

/** @param {number} value @param {string} unit @returns {string} three digits and a prefix: `12.3 mJ` */
export function scaled(value, unit) {
  if (value === 0) return unit ? `0 ${unit}` : "0";
  const size = Math.abs(value);
  // 999.6 has three digits only as 1.00 k
  const [factor, prefix] = SCALES.find(([each]) => Number((size / each).toPrecision(3)) >= 1) ?? SCALES[SCALES.length - 1];
  const digits = Number((value / factor).toPrecision(3));
  const text = Math.abs(digits) >= 100 ? String(Math.round(digits)) : String(digits);
  return unit || prefix ? `${text} ${prefix}${unit}` : text;
}

/** @param {bigint} uj @returns {string} joules, in three digits */
export const briefJoules = (uj) => scaled(Number(uj) / 1e6, "J");

/** @param {number|bigint} count @returns {string} `12 345` */
export const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** @param {number} count @param {string} what one of them @returns {string} */
export const counted = (count, what) => `${grouped(count)} ${what}${count === 1 ? "" : "s"}`;

/** @param {bigint} ns @returns {string} `2026-11-30 07:49:05 UTC`; past the year 9999 the number itself */
export function utc(ns) {
  const ms = ns / 1000000n;
  return ms < 253402300800000n ? `${new Date(Number(ms)).toISOString().slice(0, 19).replace("T", " ")} UTC` : `${ns} ns`;
}

/** @param {number} ms Unix @param {boolean} [date] @returns {string} `07:49`, or with its day */
export function clock(ms, date = false) {
  const text = new Date(ms).toISOString();
  return date ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, 16);
}

/** @param {bigint} ns @returns {string} */
export function duration(ns) {
  const seconds = Number(ns) / 1e9;
  if (seconds < 120) return seconds < 1 ? scaled(seconds, "s") : `${seconds.toFixed(3)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
