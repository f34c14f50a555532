/** The gateway that this page came from, and nobody else. */

const PLACE = "mesh.key";
const PATIENCE_MS = 20000;

export class ApiError extends Error {
  /** @param {number} status 0 where nobody answered @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

export class Api {
  /** @param {string} base where the page is @param {Storage|null} storage of this tab */
  constructor(base, storage) {
    this.base = new URL(".", base);
    this.storage = storage;
    this.key = storage?.getItem(PLACE) ?? "";
  }

  /** @param {string} key kept until the tab is closed; empty forgets it */
  use(key) {
    this.key = key;
    if (key) this.storage?.setItem(PLACE, key);
    else this.storage?.removeItem(PLACE);
  }

  /** @param {string} path @param {Record<string, string|number|undefined>} [query] @returns {Promise<any>} */
  async json(path, query = {}) {
    return (await this.#get(path, query, "application/json")).json();
  }

  /** @param {string} path @returns {Promise<Uint8Array>} */
  async bytes(path) {
    return new Uint8Array(await (await this.#get(path, {}, "application/cose")).arrayBuffer());
  }

  /** @param {string} path @param {Record<string, string|number|undefined>} query @param {string} accept */
  async #get(path, query, accept) {
    const url = new URL(path, this.base);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== "") url.searchParams.set(name, String(value));
    }
    /** @type {Record<string, string>} */
    const headers = { Accept: accept };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    let response;
    try {
      response = await fetch(url, {
        headers, credentials: "omit", redirect: "error", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS),
      });
    } catch {
      throw new ApiError(0, "unreachable", "the gateway does not answer");
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    const { code = "", message = `status ${response.status}` } = told.error ?? {};
    throw new ApiError(response.status, String(code), String(message));
  }
}
