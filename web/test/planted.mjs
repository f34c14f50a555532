/**
 * Plants one fault at a time in a copy of the modules and asks the vectors to find it.
 *
 *     node test/planted.mjs [PREFIX]        only faults whose name starts so
 *
 * Prints for each fault which case caught it and which rule that case names. Exits 10 if the modules as they are fail a
 * case, or if a fault is caught by none.
 */

import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { FAULTS } from "./faults.mjs";
import { cases, wrong } from "./pack.mjs";

const WEB = fileURLToPath(new URL("..", import.meta.url));

const baseline = await wrong(WEB);
for (const { id, got, due } of baseline) console.log(`unplanted: ${id}: expected ${due}, got ${got}`);

const scratch = mkdtempSync(join(tmpdir(), "mesh-planted-"));
let missed = 0;
let tried = 0;
try {
  for (const [name, file, from, to] of FAULTS.filter(([name]) => name.startsWith(process.argv[2] ?? ""))) {
    const source = readFileSync(join(WEB, file), "utf8");
    if (source.split(from).length !== 2) throw new Error(`${name}: ${file} holds ${JSON.stringify(from)} not exactly once`);
    const copy = join(scratch, String(tried++));
    cpSync(WEB, copy, { recursive: true });
    writeFileSync(join(copy, file), source.replace(from, () => to));
    const known = new Set(baseline.map(({ id }) => id));
    const [caught] = (await wrong(copy, { first: baseline.length === 0 })).filter(({ id }) => !known.has(id));
    if (!caught) missed++;
    const how = caught ? `${caught.id} (${caught.spec} ${caught.rule}): ${caught.got.slice(0, 60)}` : "CAUGHT BY NO VECTOR";
    console.log(`${name}: ${how}`);
  }
} finally {
  rmSync(scratch, { recursive: true });
}
console.log(`cases ${cases.length} wrong-unplanted ${baseline.length} planted ${tried} missed ${missed}`);
process.exitCode = missed || baseline.length ? 10 : 0;
