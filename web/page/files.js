/** Files of the reader's own: what each is, found from its bytes. Nothing in here can send anything. */

import { MeshError } from "../errors.js";
import { DISCLOSURE_BYTES, ENVELOPE_BYTES } from "../limits.js";
import { parseDisclosure } from "../values.js";

const MAP = 5; // the major type that a disclosure begins with; an envelope begins with a tag

/**
 * @typedef {{name: string, kind: "envelope", bytes: Uint8Array}
 *          |{name: string, kind: "disclosure", value: any}
 *          |{name: string, kind: "fault", errorClass: string, message: string}} Read
 */

/** @param {File} file @returns {Promise<Read>} */
export async function read(file) {
  const { name } = file;
  if (file.size > DISCLOSURE_BYTES) return { name, kind: "fault", errorClass: "structure", message: `larger than anything of this format (${file.size} bytes)` };
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch {
    return { name, kind: "fault", errorClass: "", message: "cannot be read: is it a folder?" };
  }
  if (bytes[0] >> 5 !== MAP) {
    // what is too long to be one is not cut: the verifier says so
    return { name, kind: "envelope", bytes: bytes.length > ENVELOPE_BYTES ? bytes.subarray(0, ENVELOPE_BYTES + 1) : bytes };
  }
  try {
    return { name, kind: "disclosure", value: parseDisclosure(bytes) };
  } catch (error) {
    if (!(error instanceof MeshError)) throw error;
    return { name, kind: "fault", errorClass: error.errorClass, message: `disclosure: ${error.message}` };
  }
}

/** @param {File} file @returns {Promise<{value?: any, fault?: string}>} */
export async function readDisclosure(file) {
  const found = await read(file);
  if (found.kind === "disclosure") return { value: found.value };
  if (found.kind === "fault") return { fault: `This is no disclosure: ${found.errorClass ? `${found.errorClass}: ` : ""}${found.message}` };
  return { fault: "This is no disclosure. A receipt is checked under “Check a file”." };
}
