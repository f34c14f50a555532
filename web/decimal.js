/** Decimals that come in from outside, exactly: what is signed has millionths (SPEC.md section 1). */

import { SchemaError } from "./errors.js";

const PLACES = 6;

/**
 * @param {string} text a number as JSON has it
 * @param {bigint} [most] how far from 0 it may be, in whole units
 * @returns {bigint} its millionths
 * @throws {SchemaError} for what is no number, has more places, or is further from 0
 */
export function millionths(text, most = 1000000n) {
  const found = /^(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?$/.exec(text);
  if (!found) throw new SchemaError("decimal: expected a number as JSON has it");
  const [, minus, whole, places = "", power = "0"] = found;
  const digits = (whole + places).replace(/0+$/, "");
  if (/^0*$/.test(digits)) return 0n;
  // Of the last digit that is not 0, counted in millionths.
  const exponent = Number(power) + whole.length - digits.length + PLACES;
  if (exponent < 0) throw new SchemaError(`decimal: expected at most ${PLACES} places`);
  const limit = most * 10n ** BigInt(PLACES);
  if (digits.replace(/^0+/, "").length + exponent > String(limit).length) throw new SchemaError(`decimal: above ${most}`);
  const value = BigInt(digits) * 10n ** BigInt(exponent);
  if (value > limit) throw new SchemaError(`decimal: above ${most}`);
  return minus ? -value : value;
}
