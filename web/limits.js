/** The limits of SPEC.md section 20 and of vectors/mesh.cddl, in one place. */

export const ENVELOPE_BYTES = 65536;
export const PROTECTED_BYTES = 2048;
export const PAYLOAD_BYTES = 32768;
export const SETTINGS_BYTES = 65536;
export const DISCLOSURE_BYTES = 67108864;
export const TRUST_BYTES = 1048576;
export const GRANT_BYTES = 4096;
export const GRANT_BLOCKS = 8;
export const NESTING = 16;
export const DOCUMENT_BYTES = 65536;

// No valid value has as many items: it keeps a hostile disclosure from filling the memory with empty arrays.
export const ITEMS = 200000;

export const UINT63_MAX = 2n ** 63n - 1n;
export const COUNT_MAX = 2 ** 31 - 1;
export const TOKEN_MAX = 2 ** 32 - 1;
export const SEED_MAX = 2 ** 32 - 2;
