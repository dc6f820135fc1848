// Calls of the HTTP API. Every error is a `Problem` with the server's text.

export class Problem extends Error {
  constructor(body, status) {
    super(body.detail ?? body.title ?? `The server answered ${status}.`);
    this.name = "Problem";
    this.status = status;
    this.code = body.code ?? `http_${status}`;
    this.title = body.title ?? "The request was refused";
    this.detail = this.message;
    this.requestId = body.request_id ?? null;
    this.retryAfter = body.retry_after_seconds ?? null;
    this.body = body;
  }
}

let whenUnauthorized = () => {};
/** Sets the callback for answers with status 401. */
export function onUnauthorized(act) {
  whenUnauthorized = act;
}

/** A path with encoded values: path`/v1/queues/${name}/purge`. */
export function path(parts, ...values) {
  return parts.reduce((text, part, i) => text + encodeURIComponent(values[i - 1]) + part);
}

function withQuery(url, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) search.append(name, one);
  }
  const text = search.toString();
  return text === "" ? url : `${url}?${text}`;
}

async function request(method, url, { query, body, signal } = {}) {
  const init = { method, signal, headers: { accept: "application/json" }, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  let response;
  let text;
  try {
    response = await fetch(withQuery(url, query), init);
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "unreachable", title: "No answer", detail: "The Postrider server did not answer. Is it running, and is the network up?" }, 0);
  }
  let answer = null;
  if (text !== "") {
    try {
      answer = JSON.parse(text);
    } catch {
      answer = null;
    }
  }
  if (response.ok) return answer;
  const problem = new Problem(answer ?? { title: response.statusText }, response.status);
  if (response.status === 401 && url !== "/v1/session") whenUnauthorized();
  throw problem;
}

export const api = {
  get: (url, options) => request("GET", url, options),
  post: (url, body = {}, options) => request("POST", url, { ...options, body }),
  put: (url, body, options) => request("PUT", url, { ...options, body }),
  patch: (url, body, options) => request("PATCH", url, { ...options, body }),
  remove: (url, options) => request("DELETE", url, options),
};

/** Whether the request was aborted because its page was left. */
export const isAbort = (error) => error?.name === "AbortError";
