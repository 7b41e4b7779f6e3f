// Speaks to the broker: one function to ask, one to act. Errors of three kinds: the broker refused (ApiError with its
// code and remedy), it wants us to log in (status 401), or it can't be reached (LostError).

const PREFIX = "/api/v1";
const SECONDS_MAX = 10;
/** An action goes on when its page has stopped waiting: so this is longer than `request_seconds` (60) lets it take. */
const ACTION_SECONDS_MAX = 75;

export class ApiError extends Error {
  constructor(status, { code = "", message = "", remedy = "" } = {}) {
    super(message || `the broker answered with status ${status}`);
    this.status = status;
    this.code = code;
    this.remedy = remedy;
  }
}

export class LostError extends Error {}

/** What went wrong and what to do about it, as sentences. */
export function explained(error) {
  const said = /[.!?]$/.test(error.message) ? error.message : `${error.message}.`;
  return `${said[0].toUpperCase()}${said.slice(1)} ${error.remedy ?? ""}`.trim();
}

/** What a request needs to be believed (see docs/admin-api.md); login and session fill it. */
const identity = { csrf: "" };

async function request(method, path, query, body) {
  const address = new URL(PREFIX + path, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") address.searchParams.set(name, value);
  }
  // Who sends X-Requested-With is not asked for HTTP Basic, to which browsers show a window of their own.
  const headers = { Accept: "application/json", "X-Requested-With": "sluiceway-console" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-Sluiceway-CSRF"] = identity.csrf;
  let answer;
  try {
    answer = await fetch(address, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout((path.startsWith("/actions/") ? ACTION_SECONDS_MAX : SECONDS_MAX) * 1000),
    });
  } catch (error) {
    throw new LostError(`no answer from the broker: ${error.message}`);
  }
  return read(answer);
}

async function read(answer) {
  let data = null;
  try {
    data = await answer.json();
  } catch (error) {
    // A body that broke off is a lost connection; one that never was JSON is somebody else's error page.
    if (answer.ok) throw new LostError(`the broker's answer broke off: ${error.message}`);
  }
  if (!answer.ok) throw new ApiError(answer.status, data?.error);
  return data;
}

export function ask(path, query) {
  return request("GET", path, query);
}

/** Do something. Returns {done, words}. */
export async function act(name, body) {
  try {
    return await request("POST", `/actions/${name}`, null, body ?? {});
  } catch (error) {
    if (!(error instanceof ApiError && error.code === "wrong-csrf-token")) throw error;
    // A broker that was started anew while nobody looked at the page has another token; nothing was done yet.
    await session();
    return request("POST", `/actions/${name}`, null, body ?? {});
  }
}

export async function session() {
  const found = await ask("/session");
  identity.csrf = found.csrf ?? "";
  return found;
}

export async function login(name, passcode) {
  const found = await request("POST", "/login", null, { login: name, passcode });
  identity.csrf = found.csrf ?? "";
  return found;
}

export function logout() {
  return request("POST", "/logout", null, {});
}
