/** All receipts, and the search among them. What is looked for stands in the address, so that it can be kept. */

import { el, set } from "./dom.js";
import { ReceiptList } from "./list.js";
import { FINISHES, BASES } from "./words.js";

/** What somebody typed as an id. @param {string} text @returns {string} as the gateway looks for it */
export function idOf(text) {
  return text.trim().toLowerCase().replace(/(…|\.\.\.)$/, "");
}

/** `datetime-local` has no zone; here it is UTC. @param {string} text @returns {string} */
export function timeOf(text) {
  if (!text) return "";
  const [, day, minutes, seconds] = /^(\d{4}-\d\d-\d\dT)(\d\d:\d\d)(:\d\d)?/.exec(text) ?? [];
  return day ? `${day}${minutes}${seconds ?? ":00"}Z` : "";
}

const FIELDS = ["id", "model", "caller", "finish", "basis", "from", "until"];

export class Listing {
  title = "Receipts";

  /** @param {import("./main.js").House} house */
  constructor(house) {
    this.list = new ReceiptList(house);
    const choice = (/** @type {string} */ label, /** @type {string} */ name, /** @type {string[]} */ words) =>
      el("label", {}, el("span", {}, label), el("select", { name }, el("option", { value: "" }, "any"), ...words.map((it) => el("option", { value: it }, it))));
    const field = (/** @type {string} */ label, /** @type {string} */ name, /** @type {Record<string, any>} */ attributes = {}) =>
      el("label", {}, el("span", {}, label), el("input", { name, maxlength: 256, autocomplete: "off", spellcheck: "false", ...attributes }));
    this.form = el(
      "form",
      { class: "search card", role: "search", "aria-label": "Receipts", on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#search(); } } },
      field("Receipt id or serve UUID, or its beginning", "id", { type: "search", class: "wide", placeholder: "b3:6de3…  or  01a22b6d-c9cc-…" }),
      field("Model", "model", { type: "search" }),
      field("Caller", "caller", { type: "search" }),
      choice("Finish", "finish", Object.keys(FINISHES)),
      choice("Energy", "basis", Object.keys(BASES)),
      field("Ended from (UTC)", "from", { type: "datetime-local" }),
      field("until (UTC)", "until", { type: "datetime-local" }),
      el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Search"), el("button", { type: "button", on: { click: () => { location.hash = "#/receipts"; } } }, "Clear")),
    );
    this.fault = el("p", { class: "fault", role: "alert", hidden: true });
    this.element = el("div", {}, el("div", { class: "head" }, el("h1", { tabindex: "-1" }, "Receipts")), this.form, this.fault, this.list.element);
  }

  #search() {
    const told = new URLSearchParams();
    for (const [name, value] of new FormData(this.form)) if (String(value).trim()) told.set(name, String(value).trim());
    const hash = `#/receipts${told.size ? `?${told}` : ""}`;
    if (hash === location.hash) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = hash;
  }

  /** @param {string} _ @param {URLSearchParams} query */
  async show(_, query) {
    /** @type {Record<string, string>} */
    const filters = {};
    for (const name of FIELDS) {
      const value = query.get(name) ?? "";
      /** @type {HTMLInputElement} */ (this.form.elements.namedItem(name)).value = value;
      filters[name] = name === "id" ? idOf(value) : name === "from" || name === "until" ? timeOf(value) : value;
    }
    this.fault.hidden = true;
    this.filtered = Object.values(filters).some(Boolean);
    try {
      await this.list.load(filters);
    } catch (error) {
      if (/** @type {any} */ (error).status !== 400) throw error;
      set(this.fault, /** @type {Error} */ (error).message);
      this.fault.hidden = false;
    }
  }

  /** @param {any} live */
  async tick(live) {
    if (!this.filtered && this.list.count !== undefined && live.receipts > this.list.count) await this.list.renew();
  }
}
