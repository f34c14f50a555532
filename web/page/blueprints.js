/** The page at /blueprint: which blueprints this gateway serves under, and the circuit of one of them. */

import { Api, ApiError } from "./api.js";
import { CircuitView } from "./circuit.js";
import { el, id, set } from "./dom.js";
import { KeyForm } from "./keyform.js";

const main = /** @type {HTMLElement} */ (document.getElementById("circuit"));

/** @returns {Storage|null} null where the browser forbids it */
function storage() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

const api = new Api(document.baseURI, storage());
const keyForm = new KeyForm((key) => {
  api.use(key);
  void show();
});

async function show() {
  try {
    const wanted = decodeURIComponent(location.hash.slice(1));
    const { blueprints } = await api.json("mesh/v1/blueprints");
    const one = wanted || (blueprints.length === 1 ? blueprints[0].blueprint_id : "");
    if (one) {
      const view = new CircuitView(await api.json(`mesh/v1/blueprints/${encodeURIComponent(one)}/circuit`));
      set(main, view.element);
      view.draw();
    } else set(main, listed(blueprints));
    main.setAttribute("data-ready", one ? "circuit" : "list");
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      set(main, keyForm.element);
      main.setAttribute("data-ready", "key");
    } else {
      set(main, el("p", { class: "fault" }, error instanceof Error ? error.message : String(error)));
      main.setAttribute("data-ready", "fault");
    }
  }
}

/** @param {any[]} blueprints */
function listed(blueprints) {
  const rows = blueprints.map((one) => el("li", {}, el("a", { href: `#${one.blueprint_id}` }, one.name), ` of ${one.models.join(", ")} `, id(one.blueprint_id)));
  return el("div", { class: "blueprints" }, el("p", {}, el("a", { href: "./" }, "mesh")), el("h1", {}, "Blueprints"),
    blueprints.length ? el("ul", {}, ...rows) : el("p", {}, "No model here is served under a blueprint."));
}

addEventListener("hashchange", () => void show());
void show();
