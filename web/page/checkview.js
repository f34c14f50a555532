/** Files that are dropped or chosen, checked here: receipts, checkpoints, and the disclosures that go with them. */

import { same } from "../bytes.js";
import { CLASSES, check } from "./checking.js";
import { el, id, name, say, set } from "./dom.js";
import { read } from "./files.js";
import { findings } from "./findings.js";
import { badge, prose } from "./marks.js";
import { counted } from "./numbers.js";
import { statement } from "./statement.js";
import { together } from "./together.js";

export class CheckView {
  title = "Check a file";

  /** @param {import("./main.js").House} house */
  constructor(house) {
    this.house = house;
    this.picker = el("input", { type: "file", multiple: true, id: "files", on: { change: () => house.guard(this.take([...(this.picker.files ?? [])])) } });
    this.results = el("div", { class: "results" });
    this.element = el(
      "div",
      {},
      el("div", { class: "head" }, el("h1", { tabindex: "-1" }, "Check a file")),
      el("p", {}, ...prose("Receipts and checkpoints as `.cbor` or `.cose` files, one or many, and the disclosures that go with them. They are read and checked by this page and sent nowhere; it works without the gateway too.")),
      el("label", { class: "dropzone", for: "files" }, el("strong", {}, "Drop files anywhere on this page"), el("span", {}, "or choose them:"), this.picker),
      this.results,
    );
    /** @type {import("./files.js").Read[]} */
    this.files = [];
    house.trusted.addEventListener("change", () => { if (this.files.length) house.guard(this.#draw()); });
  }

  async show() {}

  /** @param {File[]} files */
  async take(files) {
    if (!files.length) return;
    this.files = await Promise.all(files.map(read));
    await this.#draw();
    say(`${counted(this.files.length, "file")} checked`);
    this.results.querySelector("h2")?.focus();
  }

  async #draw() {
    const { trusted } = this.house;
    const looked = await Promise.all(
      this.files.map(async (file) => ({ file, checked: file.kind === "envelope" ? await check(file.bytes, trusted) : null })),
    );
    const held = looked.flatMap(({ checked }) => (checked?.sealed ? [checked.sealed] : []));
    const used = new Set();
    const cards = looked.map(({ file, checked }) => {
      if (file.kind === "fault") return card(file, null, faulty(file.errorClass, file.message));
      if (!checked) return null;
      const disclosures = checked.sealed?.type === "receipt" ? looked.filter((it) => it.file.kind === "disclosure" && same(it.file.value.serve_id, checked.claims.serve_id)) : [];
      for (const it of disclosures) used.add(it.file);
      return card(file, checked, ...statement(checked, trusted), ...disclosures.map((it) =>
        el("section", { class: "card" }, el("h3", {}, "Its disclosure, ", name(it.file.name)), findings(checked.claims, /** @type {any} */ (it.file).value))));
    });
    const alone = looked.filter(({ file }) => file.kind === "disclosure" && !used.has(file)).map(({ file }) =>
      card(file, null, el("p", {}, "A disclosure in good form. It says nothing by itself: drop the receipt of its serve together with it.")));
    set(this.results, ...together(held).map(side), ...cards, ...alone);
  }
}

/** @param {import("./together.js").Together} told @returns {HTMLElement} */
function side({ receipts, runs, steward, fault }) {
  if (fault) return faulty(fault.errorClass, fault.message);
  const whose = ["of ", id(steward)];
  return runs === 1
    ? el("p", { class: "verdict verified", "data-class": "" }, `${counted(receipts, "receipt")} `, ...whose, " follow one another without a gap or a fork.")
    : el("p", { class: "verdict", "data-class": "" }, `${counted(receipts, "receipt")} `, ...whose, ` in ${runs} runs. What was sealed between them is not among these files.`);
}

/** @param {import("./files.js").Read} file @param {import("./checking.js").Checked|null} checked @param {...Node} body */
function card(file, checked, ...body) {
  return el("article", { class: "checked", "data-file": file.name }, el("h2", { tabindex: "-1" }, name(file.name), " ", checked ? badge(checked) : null), ...body);
}

/** @param {string} errorClass @param {string} message */
function faulty(errorClass, message) {
  return el("div", { class: "verdict wrong", "data-class": errorClass },
    errorClass ? el("p", { class: "headline" }, "Error class ", el("code", {}, errorClass), `. ${CLASSES.get(errorClass) ?? ""}`) : null,
    el("p", { class: "message" }, message));
}
