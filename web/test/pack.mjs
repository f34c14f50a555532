/** The vectors, asked of a copy of the modules in this process. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const VECTORS = fileURLToPath(new URL("../../vectors/v1/", import.meta.url));

export const cases = readFileSync(join(VECTORS, "INDEX.tsv"), "utf8")
  .trimEnd()
  .split("\n")
  .slice(1)
  .map((row) => {
    const [id, op, words, exit, expected, spec, rule, feature] = row.split("\t");
    const asked = [op, ...(words === "-" ? [] : words.split(" "))];
    return { id, words: asked, exit: Number(exit), expected, spec, rule, feature };
  });

/** The cases that the modules in a folder get wrong; only the first of them where one is enough. */
export async function wrong(folder, { first = false } = {}) {
  const { answer } = await import(pathToFileURL(join(folder, "operations.js")).href);
  const failed = [];
  for (const each of cases) {
    let got;
    try {
      const { code, line } = await answer(each.words, (name) => new Uint8Array(readFileSync(join(VECTORS, each.id, name))));
      got = `${code} ${line ?? "-"}`;
    } catch (error) {
      got = `crash ${error.name}: ${error.message}`;
    }
    const due = each.exit === 0 ? `0 ${each.expected}` : `${each.exit} reject ${each.expected}`;
    if (got !== due) {
      failed.push({ ...each, got, due });
      if (first) break;
    }
  }
  return failed;
}
