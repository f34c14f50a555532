/** Receipts in lines, newest first. What a line says comes from the signed bytes, which are checked before it is shown. */

import { fromBase64Url } from "./base64.js";
import { check } from "./checking.js";
import { el, name, put, say, set } from "./dom.js";
import { contentIdText, serveIdText } from "../ids.js";
import { badge } from "./marks.js";
import { briefJoules, counted, grouped, utc } from "./numbers.js";
import { joulesPerToken } from "./words.js";

const HEADINGS = ["No.", "Ended, UTC", "Model", "Caller", "Finish", "Tokens", "Energy", "J/token", "Checked here"];

export class ReceiptList {
  /** @param {import("./main.js").House} house @param {number} [fixed] only the newest so many, without a way to more */
  constructor(house, fixed) {
    this.house = house;
    this.fixed = fixed;
    this.body = el("tbody", { role: "rowgroup" });
    this.table = el(
      "table",
      { class: "receipts", role: "table" },
      el("caption", { class: "unseen" }, "Receipts, newest first"),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...HEADINGS.map((it) => el("th", { scope: "col", role: "columnheader" }, it)))),
      this.body,
    );
    this.told = el("p", { class: "note", role: "status" });
    this.more = el("button", { type: "button", class: "more-button", hidden: true, on: { click: () => house.guard(this.older()) } }, "Older receipts");
    this.element = el("div", {}, this.table, this.told, this.more);
    /** @type {{bytes: Uint8Array, item: any, row: HTMLTableRowElement}[]} */
    this.rows = [];
    /** How many the ledger had. @type {number|undefined} */
    this.count = undefined;
    /** @type {Record<string, string>} */
    this.filters = {};
    this.turn = 0;
    house.trusted.addEventListener("change", () => house.guard(this.recheck()));
  }

  /** @param {Record<string, string>} filters parameters of the gateway's list */
  async load(filters) {
    this.filters = filters;
    this.searched = 0;
    const turn = ++this.turn;
    this.table.setAttribute("aria-busy", "true");
    try {
      const told = await this.#ask({});
      if (turn !== this.turn) return;
      this.rows = [];
      this.body.replaceChildren();
      await this.#add(told, false);
    } finally {
      if (turn === this.turn) this.table.removeAttribute("aria-busy");
    }
  }

  /** What came since. Lines that are there stay as they are, and so does the focus. */
  async renew() {
    if (this.renewing) return;
    this.renewing = true;
    try {
      const turn = this.turn;
      const told = await this.#ask({});
      if (turn !== this.turn) return;
      const newest = this.rows[0]?.item.seq ?? -1;
      const fresh = told.receipts.filter((/** @type {any} */ it) => it.seq > newest);
      // more came than one page holds: what is between is not known
      if (fresh.length === told.receipts.length) await this.load(this.filters);
      else await this.#add({ ...told, receipts: fresh, searched: 0, next: this.next }, true);
      while (this.fixed && this.rows.length > this.fixed) this.rows.pop()?.row.remove();
    } finally {
      this.renewing = false;
    }
  }

  async older() {
    if (this.next === undefined) return;
    const first = this.rows.length;
    await this.#add(await this.#ask({ before: this.next }), false);
    this.rows[first]?.row.querySelector("a")?.focus();
  }

  /** The keys that count are others now. */
  async recheck() {
    for (const each of this.rows) {
      const row = await this.#row(each.item, each.bytes);
      each.row.replaceWith(row);
      each.row = row;
    }
  }

  /** @param {Record<string, string|number|undefined>} query */
  #ask(query) {
    return this.house.api.json("mesh/v1/receipts", { ...this.filters, limit: this.fixed, ...query });
  }

  /** @param {any} told @param {boolean} first */
  async #add(told, first) {
    this.count = told.count;
    this.next = told.next;
    this.searched = (this.searched ?? 0) + told.searched;
    const made = await Promise.all(
      told.receipts.map(async (/** @type {any} */ item) => {
        const bytes = fromBase64Url(item.envelope);
        return { bytes, item, row: await this.#row(item, bytes) };
      }),
    );
    if (first) {
      this.rows.unshift(...made);
      this.body.prepend(...made.map(({ row }) => row));
    } else {
      this.rows.push(...made);
      this.body.append(...made.map(({ row }) => row));
    }
    this.table.hidden = this.rows.length === 0;
    this.more.hidden = this.fixed !== undefined || this.next === undefined;
    this.#tell();
  }

  #tell() {
    const filtered = Object.values(this.filters).some(Boolean);
    const found = counted(this.rows.length, "receipt");
    let text = filtered ? `${found} found among the newest ${grouped(this.searched ?? 0)} of ${grouped(this.count ?? 0)}.` : `${found} of ${grouped(this.count ?? 0)}.`;
    if (filtered && this.next === undefined) text = `${found} found among ${grouped(this.count ?? 0)}.`;
    if (this.count === 0) text = "No receipts yet. Every serve that begins gets one.";
    set(this.more, filtered ? "Search in older ones" : "Older receipts");
    this.told.hidden = this.fixed !== undefined && this.count !== 0;
    if (this.told.textContent !== text) this.told.textContent = text;
    if (filtered) say(text);
  }

  /** @param {any} item @param {Uint8Array} bytes @returns {Promise<HTMLTableRowElement>} */
  async #row(item, bytes) {
    const checked = await check(bytes, this.house.trusted, "receipt");
    const { claims: receipt, sealed } = checked;
    // the ledger's own notes count for nothing where they say something else than what was signed
    const other = sealed && (contentIdText(sealed.id) !== item.receipt_id || serveIdText(receipt.serve_id) !== item.serve_id || Number(receipt.seq) !== item.seq);
    const link = el("a", { href: `#/receipt/${encodeURIComponent(item.receipt_id)}`, class: "row-link", "aria-label": `Receipt ${item.seq}` }, grouped(item.seq));
    const cells = receipt ? cellsOf(receipt) : ["", "unreadable", "", "", "", ""];
    const all = [link, cells[0], cells[1], name(item.caller), ...cells.slice(2), el("span", {}, badge(checked), other ? el("span", { class: "badge wrong" }, "other than listed") : null)];
    return el("tr", { role: "row", class: checked.state }, ...all.map((cell, i) => {
      const td = el("td", { role: "cell", "data-label": HEADINGS[i] });
      put(td, cell);
      return td;
    }));
  }
}

/** @param {any} receipt @returns {(Node|string)[]} ended, model, finish, tokens, energy, per token */
function cellsOf(receipt) {
  const { outcome, energy, engine } = receipt;
  const count = (/** @type {number|undefined} */ it) => (it === undefined ? "?" : grouped(it));
  const counts = outcome.tokens_in === undefined && outcome.tokens_out === undefined ? "not counted" : `${count(outcome.tokens_in)} → ${count(outcome.tokens_out)}`;
  const when = utc(receipt.ended_ns);
  return [
    // the year is in the title; a line has little room
    el("time", { title: when }, when.replace(/^\d{4}-(.*) UTC$/, "$1")),
    name(engine.recipe_id),
    outcome.finish,
    counts,
    energy.uj === undefined ? el("span", { class: "quiet" }, energy.basis) : el("span", {}, briefJoules(energy.uj), " ", el("span", { class: "quiet" }, energy.basis)),
    joulesPerToken(receipt) ?? el("span", { class: "quiet" }, "not known"),
  ];
}

