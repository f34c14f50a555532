/** Whose signatures count: the reader's own choice, kept in this browser. */

import { MeshError } from "../errors.js";
import { el, id, say, set } from "./dom.js";
import { prose } from "./marks.js";

export class TrustView {
  title = "Trust";

  /** @param {import("./main.js").House} house */
  constructor(house) {
    this.trusted = house.trusted;
    this.now = el("div");
    this.fault = el("p", { class: "fault", role: "alert", hidden: true });
    this.lines = el("textarea", { id: "keys", rows: 4, spellcheck: "false", autocomplete: "off", "aria-describedby": "keys-how", placeholder: "ed25519:03a1…" });
    this.element = el(
      "div",
      {},
      el("div", { class: "head" }, el("h1", { tabindex: "-1" }, "Trust")),
      el("p", {}, "A receipt is worth what the key is worth that signed it. This page counts the signatures of the keys that you pin here, and of no others. They stay in this browser."),
      this.now,
      el(
        "form",
        { class: "card", on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#pin(this.lines.value); } } },
        el("h2", {}, "Pin keys"),
        el("label", { for: "keys" }, "Keys of stewards, one a line"),
        this.lines,
        el("p", { class: "note", id: "keys-how" }, ...prose("As `mesh key show` prints them, or a trust file with `from=` and `until=`. Have them from the operator by another way than this gateway.")),
        this.fault,
        el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Pin these keys")),
      ),
    );
    house.trusted.addEventListener("change", () => this.#draw());
  }

  async show() {
    this.lines.value = this.trusted.text;
    this.fault.hidden = true;
    this.#draw();
  }

  #draw() {
    const { trusted } = this;
    const { told } = trusted;
    const gateway = told ? [el("p", {}, "This gateway says that its key is ", id(told), ".")] : [];
    if (!trusted.pinned) {
      gateway.push(
        el("p", {}, "You have pinned nothing. Receipts are checked against that key, and the only reason to trust it is that this gateway said so: a gateway that lies can name any key."),
        ...(told ? [el("div", { class: "actions" }, el("button", { type: "button", on: { click: () => this.#pin(told) } }, "Pin the key that it names now"), el("span", { class: "note" }, "From then on this page notices if it changes. Whether it was the right one to begin with, it cannot know."))] : []),
      );
    }
    set(
      this.now,
      el("section", { class: "card" }, el("h2", {}, "This gateway"), ...(gateway.length ? gateway : [el("p", {}, "It has not said yet which key is its own.")]),
        trusted.differs ? el("p", { class: "verdict wrong" }, "That is none of the keys that you pinned.") : null,
        trusted.pinned && told && !trusted.differs ? el("p", { class: "verdict verified" }, "It is one of the keys that you pinned.") : null),
      trusted.pinned
        ? el("section", { class: "card" }, el("h2", {}, "Pinned"), el("ul", { class: "keys" }, ...trusted.keys.stewards().map((it) => el("li", {}, id(it)))),
            el("div", { class: "actions" }, el("button", { type: "button", on: { click: () => this.#unpin() } }, "Forget them")))
        : null,
    );
  }

  /** @param {string} text */
  #pin(text) {
    try {
      this.trusted.pin(text);
      this.fault.hidden = true;
      this.lines.value = text;
      say("Pinned.");
    } catch (error) {
      if (!(error instanceof MeshError)) throw error;
      set(this.fault, error.message);
      this.fault.hidden = false;
    }
  }

  #unpin() {
    this.trusted.unpin();
    this.lines.value = "";
    say("Forgotten.");
  }
}
