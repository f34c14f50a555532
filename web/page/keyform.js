/** A key, where the gateway wants one. It goes to this gateway in a header, and stays in this tab. */

import { el, set } from "./dom.js";

export class KeyForm {
  /** @param {(key: string) => void} use */
  constructor(use) {
    this.key = el("input", { type: "password", id: "key", autocomplete: "off", required: true, maxlength: 8192, "aria-describedby": "key-how" });
    this.fault = el("p", { class: "fault", role: "alert", hidden: true });
    this.element = el(
      "form",
      { class: "card key", on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#use(use); } } },
      el("h1", { tabindex: "-1" }, "This gateway wants a key"),
      el("label", { for: "key" }, "Key or grant"),
      this.key,
      el("p", { class: "note", id: "key-how" }, "The one that you use its API with. It is sent to this gateway alone and forgotten when this tab is closed. ", "Files can be checked ", el("a", { href: "#/check" }, "without one"), "."),
      this.fault,
      el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Use it")),
    );
  }

  /** @param {string} fault of the key that was tried; empty where none was */
  ask(fault) {
    this.#tell(fault);
    this.key.value = "";
    this.key.focus();
  }

  /** @param {(key: string) => void} use */
  #use(use) {
    const key = this.key.value.trim();
    // what a header cannot hold the browser would refuse to send, without saying why
    if (/^[\x21-\x7e]+$/.test(key)) use(key);
    else this.#tell("a key has no spaces and none but ASCII characters");
  }

  /** @param {string} fault */
  #tell(fault) {
    set(this.fault, fault);
    this.fault.hidden = !fault;
  }
}
