import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { cases, wrong } from "./pack.mjs";

test("every vector gets the answer that it names", async () => {
  assert.ok(cases.length > 150);
  const failed = await wrong(fileURLToPath(new URL("..", import.meta.url)));
  assert.deepEqual(failed.map(({ id, got, due }) => `${id}: expected ${due}, got ${got}`), []);
});
