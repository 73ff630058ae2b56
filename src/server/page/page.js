"use strict";
/* What the scripts of a page share: making nodes, numbers as people read them, and asking the server with the user's key. */
const Page = (() => {
  const KEY = "radish-key";
  function make(name, props = {}, ...children) {
    const e = document.createElement(name);
    Object.assign(e, props);
    e.append(...children);
    return e;
  }
  /* A button; does: what a listener further up reads. */
  function action(text, does, label) {
    const b = make("button", { type: "button" }, text);
    b.dataset.does = does;
    if (label) b.setAttribute("aria-label", label);
    return b;
  }
  const whole = (n) => Number(n || 0).toLocaleString("en");
  const count = (n, what) => whole(n) + " " + what + (n === 1 ? "" : "s");
  const time = (s) => (s < 0.0995 ? Math.round(s * 1e3) + " ms" : s < 120 ? +s.toPrecision(2) + " s" : Math.round(s / 60) + " min");
  function bytes(n) {
    for (const [size, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (n >= size) return +(n / size).toPrecision(3) + " " + name;
    return whole(n) + " B";
  }
  const get_key = () => sessionStorage.getItem(KEY) || "";
  const set_key = (key) => sessionStorage.setItem(KEY, key);
  const headers = () => (get_key() ? { Authorization: "Bearer " + get_key() } : {});
  /* The answer's JSON. Throws what to tell a person: Error with `status` (0: the server was not reached). */
  async function ask(path, method = "GET", body = undefined) {
    let answer, value;
    try {
      answer = await fetch(path, { method, headers: body === undefined ? headers() : { ...headers(), "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
      value = await answer.json().catch(() => null);
    } catch (e) {
      throw Object.assign(new Error("The server cannot be reached."), { status: 0 });
    }
    if (answer.ok && value) return value;
    const said = value && value.error && value.error.message;
    throw Object.assign(new Error(answer.status === 401 ? "The server asks for its API key." : said || `The server answered ${answer.status}.`), { status: answer.status });
  }
  return { make, action, whole, count, time, bytes, get_key, set_key, headers, ask };
})();
