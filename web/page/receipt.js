/** One receipt of this gateway's ledger, checked here. */

import { check } from "./checking.js";
import { el, id, set } from "./dom.js";
import { contentIdText, serveIdText } from "../ids.js";
import { findings } from "./findings.js";
import { readDisclosure } from "./files.js";
import { statement } from "./statement.js";

export class ReceiptView {
  title = "Receipt";

  /** @param {import("./main.js").House} house */
  constructor(house) {
    this.house = house;
    this.body = el("div", { class: "receipt" });
    this.compared = el("div", { "aria-live": "polite" });
    this.picker = el("input", { type: "file", on: { change: () => house.guard(this.#disclosed()) } });
    this.actions = el("div", { class: "actions" });
    this.heading = el("h1", { tabindex: "-1" }, "Receipt");
    this.element = el(
      "div",
      {},
      el("p", { class: "back" }, el("a", { href: "#/receipts" }, "← All receipts")),
      el("div", { class: "head" }, this.heading, this.actions),
      this.body,
      el(
        "section",
        { class: "card" },
        el("h2", {}, "Hold a disclosure against it"),
        el("p", {}, "With a serve's disclosure this page tells whether a prompt and an output are the ones that were sealed. The file is read here and sent nowhere."),
        el("label", { class: "pick" }, el("span", {}, "Disclosure file"), this.picker),
        this.compared,
      ),
    );
    house.trusted.addEventListener("change", () => { if (this.bytes && this.element.isConnected) house.guard(this.#draw()); });
  }

  /** @param {string} name a receipt id or a serve UUID */
  async show(name) {
    this.bytes = undefined;
    this.name = name;
    set(this.body, el("p", { class: "empty" }, "Asking for it …"));
    this.compared.replaceChildren();
    this.actions.replaceChildren();
    this.picker.value = "";
    set(this.heading, "Receipt");
    try {
      this.bytes = await this.house.api.bytes(`mesh/v1/receipts/${encodeURIComponent(name)}`);
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (status !== 404 && status !== 400) throw error;
      set(this.body, el("p", { class: "fault", role: "alert" }, message));
      return;
    }
    if (name === this.name) await this.#draw();
  }

  async #draw() {
    const bytes = /** @type {Uint8Array} */ (this.bytes);
    const checked = await check(bytes, this.house.trusted, "receipt");
    const { claims, sealed } = checked;
    this.claims = sealed && claims;
    const asked = this.name;
    const other = sealed && ![contentIdText(sealed.id), serveIdText(claims.serve_id)].includes(asked ?? "");
    set(this.heading, claims ? `Receipt no. ${claims.seq}` : "Receipt");
    set(
      this.body,
      other ? el("p", { class: "fault", role: "alert" }, "The gateway sent another receipt than the one that was asked for, ", id(asked ?? ""), ".") : null,
      ...statement(checked, this.house.trusted),
    );
    this.#offer(bytes, claims);
  }

  /** The signed bytes, to be kept, and the way to the receipt before. @param {Uint8Array} bytes @param {any} claims */
  #offer(bytes, claims) {
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(new Blob([new Uint8Array(bytes)], { type: "application/cose" }));
    set(
      this.actions,
      claims?.prev ? el("a", { class: "button", href: `#/receipt/${contentIdText(claims.prev)}` }, "The one before") : null,
      el("a", { class: "button", href: this.url, download: claims ? `receipt-${claims.seq}.cbor` : "receipt.cbor" }, "Save the signed bytes"),
    );
  }

  async #disclosed() {
    const file = this.picker.files?.[0];
    if (!file) return;
    const read = await readDisclosure(file);
    if (read.fault || !this.claims) {
      set(this.compared, el("p", { class: "fault" }, read.fault || "The receipt itself does not hold, so that there is nothing to hold a disclosure against."));
      return;
    }
    set(this.compared, findings(this.claims, read.value));
  }
}
