"use strict";
/* The chat page: asks v1/models and v1/chat/completions of its own server, and keeps conversations in localStorage, each
 * under a name of its own, so that two tabs do not overwrite each other's. What models and files say is only ever set as
 * text, or made of nodes by Markdown.
 *
 * A conversation is a tree: a message that is edited or asked for again becomes a sibling of the one before, and `at`
 * says which of them is shown.
 */
(() => {
  const STORE = "radish-chat:", PARAMS = "radish-chat-params", PAINT_MS = 60, SAVE_MS = 1000, MAX_PICTURE = 1536;
  const $ = (id) => document.getElementById(id);
  const OPTIONS = [
    ["temperature", "Temperature", { min: 0, max: 100, step: "any" }], ["top_p", "Top p", { min: 0, max: 1, step: "any" }],
    ["top_k", "Top k", { min: 0, step: 1 }], ["min_p", "Min p", { min: 0, max: 1, step: "any" }],
    ["max_tokens", "Most tokens", { min: 1, step: 1 }], ["seed", "Seed", { min: 0, step: 1 }],
    ["repetition_penalty", "Repetition penalty", { min: 0.01, max: 100, step: "any" }], ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: "any" }],
    ["thinking", "Thinking", { choices: [["", "as the model does"], ["on", "on"], ["off", "off"]] }],
  ];
  const { make, action, whole, count, time, headers } = Page;
  let models = [], chat = null, running = null, pictures = [], gone = null;

  const new_id = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  function say(state, text) {
    if ($("state").textContent !== text) $("state").textContent = text;
    $("state").className = state;
  }

  /* ---- conversations ---- */

  const last_params = () => {
    try {
      return JSON.parse(localStorage.getItem(PARAMS)) || {};
    } catch (e) {
      return {};
    }
  };
  function new_chat() {
    const from = last_params();
    return { id: new_id(), title: "", named: false, model: "", system: String(from.system || ""), params: Object(from.params), changed: Date.now(), root: { children: [], at: 0 }, nodes: {} };
  }
  /* What was stored, or null: it may be of another version, or damaged. */
  function read_chat(text) {
    try {
      const c = JSON.parse(text);
      if (!c || typeof c.id !== "string" || !Array.isArray(c.root.children) || !c.nodes) return null;
      for (const n of Object.values(c.nodes)) {
        if (typeof n.text !== "string" || !Array.isArray(n.children) || !n.children.every((id) => Object.hasOwn(c.nodes, id))) return null;
        n.images = Array.isArray(n.images) ? n.images.filter((url) => /^data:image\/(png|jpeg|webp|gif);base64,/.test(url)) : [];
      }
      return c.root.children.every((id) => Object.hasOwn(c.nodes, id)) ? Object.assign(new_chat(), c) : null;
    } catch (e) {
      return null;
    }
  }
  function save(c) {
    if (!c.root.children.length) return;
    c.changed = Date.now();
    try {
      localStorage.setItem(STORE + c.id, JSON.stringify(c));
    } catch (e) {
      say("lost", "The browser's storage is full: this conversation is not kept. Delete others, or export it");
    }
  }
  function all_chats() {
    const out = [];
    for (let i = 0; i < localStorage.length; i++) {
      const name = localStorage.key(i), c = name.startsWith(STORE) ? read_chat(localStorage.getItem(name)) : null;
      if (c) out.push({ id: c.id, title: title_of(c), changed: c.changed });
    }
    return out.sort((a, b) => b.changed - a.changed);
  }
  const title_of = (c) => c.title || "New conversation";
  const parent_of = (c, node) => (node.up ? c.nodes[node.up] : c.root);
  /* The messages that are shown, first to last. */
  function path_of(c) {
    const out = [];
    for (let at = c.root; at.children.length; ) out.push((at = c.nodes[at.children[Math.min(at.at, at.children.length - 1)]]));
    return out;
  }
  function add_node(c, up, node) {
    const n = Object.assign({ id: new_id(), up: up ? up.id : "", text: "", images: [], children: [], at: 0 }, node);
    const parent = up || c.root;
    c.nodes[n.id] = n;
    parent.at = parent.children.push(n.id) - 1;
    return n;
  }

  function paint_list() {
    $("chats").replaceChildren(...all_chats().map((c) => {
      const b = make("button", { type: "button", title: c.title }, c.title);
      b.dataset.id = c.id;
      if (chat && c.id === chat.id) b.setAttribute("aria-current", "true");
      return make("li", {}, b);
    }));
  }
  function show_chat(c) {
    chat = c;
    $("rename").hidden = true;
    $("title").hidden = false;
    $("system").value = c.system;
    for (const [name] of OPTIONS) $("p-" + name).value = c.params[name] === undefined ? "" : c.params[name];
    if (c.model && models.some((m) => m.id === c.model)) $("model").value = c.model;
    paint_list();
    paint_log();
    paint_sees();
  }
  function open_chat(id) {
    const c = running && running.chat.id === id ? running.chat : read_chat(localStorage.getItem(STORE + id));
    show_chat(c || new_chat());
  }

  /* ---- messages ---- */

  function foot_of(node) {
    const s = node.stats, out = [];
    if (s && s.prompt !== undefined) out.push(`${count(s.prompt, "prompt token")}, ${whole(s.cached)} of them cached`);
    if (s && s.generated !== undefined) out.push((s.about ? "about " : "") + count(s.generated, "token"));
    if (s && s.speed > 0) out.push(`${+s.speed.toPrecision(3)} tokens/s`);
    if (s && s.first > 0) out.push(`first after ${time(s.first)}`);
    if (node.model && models.length > 1) out.push(node.model);
    return out;
  }
  function fill_foot(node, foot, busy) {
    const parent = parent_of(chat, node), n = parent.children.length;
    foot.replaceChildren();
    if (node.role === "assistant") foot.append(...foot_of(node).map((text) => make("span", {}, text)));
    if (busy) return;
    if (n > 1) {
      const i = parent.children.indexOf(node.id);
      foot.append(make("span", { className: "versions" }, action("‹", "before", "Version before"), ` ${i + 1} of ${n} `, action("›", "after", "Next version")));
    }
    foot.append(action("Copy", "copy-text", "Copy this message"), action("Edit", "edit", "Edit this message"));
    if (node.role === "assistant") foot.append(action("Again", "again", "Generate this answer again"));
    else if (!node.children.length) foot.append(action("Answer", "again", "Generate an answer to this message"));
    if (node.is_cut && node.text && !node.children.length) foot.append(action("Go on", "go-on", "Let the model go on with this answer"));
  }
  /* The article of a message, with what the painting of its stream needs. */
  function article_of(node) {
    const who = node.role === "user" ? "You" : "Assistant", busy = running && running.node === node;
    const body = make("div", { className: node.role === "user" ? "body text" : "body" }), foot = make("div", { className: "foot" });
    const article = make("article", { className: node.role }, make("h3", { className: "who" }, who));
    const view = { article, body, foot, markdown: new Markdown(body), thinking: null };
    article.dataset.id = node.id;
    if (node.images.length) article.append(make("div", { className: "pictures" }, ...node.images.map((url) => make("img", { src: url, alt: "Attached picture" }))));
    article.append(body);
    if (node.role === "user") body.textContent = node.text;
    else fill_answer(node, view);
    if (busy) {
      article.setAttribute("aria-busy", "true");
      running.view = view;
    }
    if (node.is_cut && !node.problem && !busy) article.append(make("p", { className: "note" }, node.stopped ? "Stopped." : "Ended at the most tokens, or at the end of the context."));
    if (node.problem && !busy) {
      const problem = make("p", { className: "problem" }, node.problem, " ", action("Try again", "again"));
      problem.setAttribute("role", "alert");
      article.append(problem);
    }
    fill_foot(node, foot, busy);
    article.append(foot);
    return article;
  }
  function fill_answer(node, view) {
    if (node.thinking && !view.thinking) {
      const text = make("div", { className: "text", tabIndex: 0 });
      view.thinking = { summary: make("summary"), text, n: 0 };
      view.article.insertBefore(make("details", { className: "thinking" }, view.thinking.summary, text), view.body);
    }
    if (node.thinking) {
      const t = view.thinking;
      t.summary.textContent = node.thought_s ? "Thought for " + time(node.thought_s) : node.text || !running || running.node !== node ? "Thought" : "Thinking";
      if (t.n < node.thinking.length) t.text.append(node.thinking.slice(t.n));
      t.n = node.thinking.length;
    }
    view.markdown.write(node.text);
  }
  function paint_log() {
    const path = path_of(chat);
    $("title").textContent = title_of(chat);
    $("log").replaceChildren(...path.map(article_of));
    if (!path.length) $("log").append(make("p", { className: "empty" }, "Ask something. What you write goes to this server and to no other."));
    $("tools").hidden = !path.length;
    $("log").scrollTop = $("log").scrollHeight;
    paint_buttons();
  }
  function paint_buttons() {
    $("stop").hidden = !running;
    $("send").hidden = !!running;
  }
  const is_at_end = () => $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
  function find_article(node) {
    return [...$("log").children].find((a) => a.dataset.id === node.id);
  }

  /* ---- asking ---- */

  /* What went wrong, in plain words. */
  function explain(status, e, answer) {
    const said = e && e.message ? String(e.message) : "", code = e && e.code;
    const wait = answer && Number(answer.headers.get("Retry-After"));
    if (status === 401) return "The server asks for its API key: put it in above.";
    if (status === 403) return "This server does not let you do that: " + said;
    if (code === "context_length_exceeded") return "The conversation no longer fits into the model's context. Begin a new one, or edit an earlier message and go on from there. (" + said + ")";
    if (code === "model_not_found") return "The server does not have this model any more. Choose another one above. (" + said + ")";
    if (status === 413) return "This is more than the server takes in one request: " + said;
    if (status === 429) return "The server is busy with other requests. Try again " + (wait > 0 ? `in ${wait} seconds.` : "in a moment.") + (said ? ` (${said})` : "");
    if (status === 503 && /loading/i.test(said)) return "The model is still being loaded. Try again in a moment.";
    if (status === 503) return "The server cannot answer now: " + said;
    return (status ? `The server refused (${status}): ` : "The answer broke off: ") + (said || "it did not say why");
  }
  const UNREACHED = "The server cannot be reached. Does it still run, and does this machine have a network?";
  const CUT = "The connection broke off before the answer had ended. What came is kept.";

  /* What is asked for the answer `node`: its text so far, if there is any, is gone on with. */
  function body_of(c, node) {
    const messages = [], body = { model: $("model").value || undefined, messages, stream: true, stream_options: { include_usage: true } };
    if (c.system.trim()) messages.push({ role: "system", content: c.system });
    for (let at = node; at !== c.root; at = parent_of(c, at)) {
      if (at.role === "assistant" && !at.text) continue;
      const parts = at.images.map((url) => ({ type: "image_url", image_url: { url } }));
      messages.splice(c.system.trim() ? 1 : 0, 0, { role: at.role, content: parts.length ? [{ type: "text", text: at.text }, ...parts] : at.text });
    }
    for (const [name] of OPTIONS) {
      const v = c.params[name];
      if (v === undefined || v === "") continue;
      if (name === "thinking") body.enable_thinking = v === "on";
      else body[name] = Number(v);
    }
    return body;
  }

  /* Each event's data; comments go to on_comment. False: the stream ended without saying so. */
  async function read_events(stream, on_event, on_comment) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return false;
      text += value;
      const parts = text.split("\n");
      text = parts.pop();
      for (const line of parts) {
        if (line.startsWith(":")) on_comment(line.slice(1).trim());
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return true;
        on_event(JSON.parse(data));
      }
    }
  }

  function take_event(r, m) {
    const node = r.node, now = performance.now();
    if (m.error) throw Object.assign(new Error("stream"), { told: explain(0, m.error, null) });
    if (m.model) node.model = m.model;
    const choice = m.choices && m.choices[0], d = (choice && choice.delta) || {}, thought = d.reasoning_content || "";
    if (thought || d.content) {
      if (!r.first_ms) {
        r.first_ms = now;
        say("live", thought ? "Thinking" : "Answering");
      }
      if (d.content && node.thinking && !node.text) {
        node.thought_s = (now - r.first_ms) / 1e3;
        say("live", "Answering");
      }
      r.n_chunks++;
      r.last_ms = now;
      node.thinking = (node.thinking || "") + thought;
      node.text += d.content || "";
      node.stats.first = (r.first_ms - r.begun_ms) / 1e3;
      node.stats.generated = r.n_chunks;
      node.stats.about = true;
      if (r.last_ms > r.first_ms) node.stats.speed = ((r.n_chunks - 1) * 1e3) / (r.last_ms - r.first_ms);
    }
    if (choice && choice.finish_reason) r.finish = choice.finish_reason;
    if (m.timings && m.timings.predicted_per_second > 0) node.stats.speed = m.timings.predicted_per_second;
    if (m.usage) {
      const details = m.usage.prompt_tokens_details || {};
      Object.assign(node.stats, { prompt: m.usage.prompt_tokens, cached: details.cached_tokens || 0, generated: m.usage.completion_tokens, about: false });
    }
  }

  /* Painting costs more the longer a text is: the pause until the next grows with what the last one took. */
  function paint_later(r) {
    if (r.timer) return;
    r.timer = setTimeout(() => {
      const begun = performance.now(), stay = chat === r.chat && is_at_end();
      r.timer = 0;
      if (chat === r.chat && r.view && r.view.article.isConnected) {
        fill_answer(r.node, r.view);
        fill_foot(r.node, r.view.foot, true);
        if (stay) $("log").scrollTop = $("log").scrollHeight;
      }
      if (begun - r.saved_ms > SAVE_MS) {
        save(r.chat);
        r.saved_ms = performance.now();
      }
      r.pause_ms = Math.max(PAINT_MS, 3 * (performance.now() - begun));
    }, r.pause_ms);
  }

  /* While the model is loaded nothing comes: say so. */
  async function watch_loading(r) {
    while (running === r && !r.first_ms) {
      await new Promise((done) => setTimeout(done, 1500));
      if (running !== r || r.first_ms) return;
      await load_models().catch(() => null);
      const m = models.find((one) => one.id === $("model").value);
      if (running === r && !r.first_ms && m && m.status && m.status.value !== "loaded") say("", `Waiting for ${m.id} to be loaded`);
    }
  }

  async function ask(c, user, old = null) {
    if (running) return;
    const node = old || add_node(c, user, { role: "assistant", model: $("model").value, thinking: "", stats: {} });
    Object.assign(node, { stats: {}, stopped: false, is_cut: false, problem: "" });
    const r = { chat: c, node, abort: new AbortController(), begun_ms: performance.now(), first_ms: 0, last_ms: 0, n_chunks: 0, finish: "", timer: 0, pause_ms: PAINT_MS, saved_ms: performance.now(), view: null };
    running = r;
    c.model = $("model").value;
    if (!c.title) c.title = user.text.trim().replace(/\s+/g, " ").slice(0, 60) || "Picture";
    save(c);
    if (chat === c) paint_log();
    paint_list();
    say("live", "Waiting for the first token");
    watch_loading(r);
    let problem = "";
    try {
      const answer = await fetch("v1/chat/completions", { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body_of(c, node)), signal: r.abort.signal });
      if (!answer.ok) {
        const e = await answer.json().catch(() => null);
        problem = explain(answer.status, e && e.error, answer);
        if (answer.status === 401) ask_key("");
        if (answer.status === 404) load_models().catch(() => null);
      } else {
        const whole_answer = await read_events(answer.body, (m) => {
          take_event(r, m);
          paint_later(r);
        }, (text) => text && !r.first_ms && say("", text.slice(0, 200)));
        if (!whole_answer) problem = CUT;
      }
    } catch (e) {
      if (e.name === "AbortError") node.stopped = true;
      else if (e.told) problem = e.told;
      else problem = r.first_ms ? CUT : UNREACHED;
    }
    end(r, problem);
  }
  function end(r, problem) {
    const { chat: c, node } = r, stay = chat === c && is_at_end();
    clearTimeout(r.timer);
    running = null;
    if (node.stopped && !node.text && !node.thinking) problem = "Stopped before the first token.";
    node.problem = problem;
    node.is_cut = r.finish === "length" || !!node.stopped || !!problem;
    if (gone !== c) save(c);
    if (chat === c) {
      const old = find_article(node);
      if (old) {
        const open = old.querySelector("details[open]");
        const fresh = article_of(node);
        if (open && fresh.querySelector("details")) fresh.querySelector("details").open = true;
        old.replaceWith(fresh);
        if (stay) $("log").scrollTop = $("log").scrollHeight;
      }
    }
    paint_buttons();
    paint_list();
    say(problem ? "lost" : "live", problem || (node.stopped ? "Stopped" : `Done: ${count(node.stats.generated, "token")}`));
  }

  /* ---- what the buttons do ---- */

  function send() {
    const text = $("say").value;
    if (running || (!text.trim() && !pictures.length)) return;
    const path = path_of(chat), last = path[path.length - 1] || null;
    const user = add_node(chat, last, { role: "user", text, images: pictures });
    $("say").value = "";
    pictures = [];
    paint_pictures();
    ask(chat, user);
  }
  function again(node) {
    if (running) return;
    const user = node.role === "assistant" ? parent_of(chat, node) : node;
    if (user === chat.root) return;
    if (node.role === "assistant" && !node.text && !node.thinking) drop_node(node); /* nothing to keep */
    ask(chat, user);
  }
  function drop_node(node) {
    const parent = parent_of(chat, node), i = parent.children.indexOf(node.id);
    parent.children.splice(i, 1);
    parent.at = Math.max(0, Math.min(parent.at, parent.children.length - 1));
    delete chat.nodes[node.id];
  }
  function edit(node, article) {
    const area = make("textarea", { value: node.text, rows: Math.min(20, node.text.split("\n").length + 1) });
    const save_button = make("button", { type: "submit" }, node.role === "user" ? "Send" : "Save"), cancel = action("Cancel", "cancel-edit");
    const form = make("form", {}, area, save_button, " ", cancel);
    area.setAttribute("aria-label", "The message");
    article.querySelector(".body").replaceWith(form);
    article.querySelector(".foot").hidden = true;
    area.focus();
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      if (running) return say("lost", "Stop the answer that runs first");
      const up = parent_of(chat, node), fresh = add_node(chat, up === chat.root ? null : up, { role: node.role, text: area.value, images: node.images, model: node.model });
      if (node.role === "user") return ask(chat, fresh);
      save(chat);
      paint_log();
    });
    form.addEventListener("keydown", (e) => {
      if (e.key === "Escape") paint_log();
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing && node.role === "user") e.preventDefault(), form.requestSubmit();
    });
  }
  async function copy(text, button, from) {
    const was = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch (e) { /* pages without TLS have no clipboard: mark it for Ctrl-C */
      getSelection().selectAllChildren(from);
      button.textContent = "Marked: Ctrl-C";
    }
    setTimeout(() => (button.textContent = was), 2000);
  }
  function turn(node, by) {
    const parent = parent_of(chat, node), to = parent.children.indexOf(node.id) + by;
    if (running && running.chat === chat) return;
    if (to < 0 || to >= parent.children.length) return;
    parent.at = to;
    save(chat);
    paint_log();
    const shown = find_article(chat.nodes[parent.children[to]]);
    shown.scrollIntoView({ block: "nearest" });
    const button = shown.querySelector(`[data-does=${by > 0 ? "after" : "before"}]`);
    if (button) button.focus();
  }
  $("log").addEventListener("click", (e) => {
    const button = e.target.closest("button[data-does]"), article = button && button.closest("article");
    if (!article) return;
    const node = chat.nodes[article.dataset.id];
    const does = button.dataset.does;
    if (does === "copy") copy(button.closest(".code").querySelector("code").textContent, button, button.closest(".code").querySelector("code"));
    else if (does === "copy-text") copy(node.text, button, article.querySelector(".body"));
    else if (does === "edit") edit(node, article);
    else if (does === "cancel-edit") paint_log();
    else if (does === "again") again(node);
    else if (does === "go-on") ask(chat, parent_of(chat, node), node);
    else if (does === "before") turn(node, -1);
    else if (does === "after") turn(node, 1);
  });
  $("composer").addEventListener("submit", (e) => {
    e.preventDefault();
    send();
  });
  $("say").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) e.preventDefault(), send();
  });
  $("stop").addEventListener("click", () => {
    if (running) running.abort.abort();
    $("say").focus();
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort.abort();
  });
  $("new").addEventListener("click", () => {
    show_chat(new_chat());
    close_list();
    $("say").focus();
  });
  $("chats").addEventListener("click", (e) => {
    const b = e.target.closest("button");
    if (!b) return;
    open_chat(b.dataset.id);
    close_list();
    $("title").focus();
  });
  function close_list() {
    $("list").classList.remove("open");
    $("list-button").setAttribute("aria-expanded", "false");
  }
  $("list-button").addEventListener("click", () => {
    const open = $("list").classList.toggle("open");
    $("list-button").setAttribute("aria-expanded", String(open));
    if (open) $("new").focus();
  });
  $("rename-button").addEventListener("click", () => {
    $("rename").hidden = false;
    $("title").hidden = true;
    $("name").value = title_of(chat);
    $("name").focus();
    $("name").select();
  });
  $("rename").addEventListener("submit", (e) => {
    e.preventDefault();
    if ($("name").value.trim()) chat.title = $("name").value.trim();
    save(chat);
    show_chat(chat);
    $("rename-button").focus();
  });
  $("rename").addEventListener("keydown", (e) => {
    if (e.key !== "Escape") return;
    show_chat(chat);
    $("rename-button").focus();
  });
  $("delete").addEventListener("click", () => {
    gone = chat;
    if (running && running.chat === chat) running.abort.abort();
    localStorage.removeItem(STORE + chat.id);
    const back = make("button", { type: "button" }, "Undo");
    back.addEventListener("click", () => {
      const c = gone;
      gone = null;
      $("undo").hidden = true;
      save(c);
      show_chat(c);
    });
    $("undo").replaceChildren(`“${title_of(chat)}” is deleted. `, back);
    $("undo").hidden = false;
    show_chat(new_chat());
    back.focus();
  });
  /* What is shown, as text for people; the whole with its versions and numbers, for programs. */
  function give_file(end, type, data) {
    const name = title_of(chat).replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 50) || "conversation";
    const url = URL.createObjectURL(new Blob([data], { type }));
    make("a", { href: url, download: name + end }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    say("live", "Exported");
  }
  $("export").addEventListener("click", () => {
    const text = path_of(chat).map((n) => `## ${n.role === "user" ? "You" : "Assistant"}\n\n${n.text}\n`).join("\n");
    give_file(".md", "text/markdown", `# ${title_of(chat)}\n\n${chat.system.trim() ? `## System\n\n${chat.system}\n\n` : ""}${text}`);
  });
  $("export-json").addEventListener("click", () => give_file(".json", "application/json", JSON.stringify(chat, null, 1)));

  /* ---- system prompt and parameters ---- */

  function make_options() {
    for (const [name, title, props] of OPTIONS) {
      const input = props.choices ? make("select", {}, ...props.choices.map(([value, text]) => make("option", { value }, text))) : make("input", { type: "number", inputMode: "decimal", ...props });
      input.id = "p-" + name;
      input.dataset.name = name;
      $("params").append(make("label", {}, title, input));
    }
    $("params").addEventListener("input", (e) => {
      const input = e.target;
      if (input.value === "" && !(input.validity && input.validity.badInput)) delete chat.params[input.dataset.name];
      else if (input.checkValidity()) chat.params[input.dataset.name] = input.value;
      input.setAttribute("aria-invalid", String(!input.checkValidity()));
      if (!input.checkValidity()) say("lost", `${input.dataset.name}: ${input.validationMessage}`);
      keep_options();
    });
    $("system").addEventListener("input", () => {
      chat.system = $("system").value;
      keep_options();
    });
  }
  function keep_options() {
    try {
      localStorage.setItem(PARAMS, JSON.stringify({ system: chat.system, params: chat.params }));
    } catch (e) { /* save() tells of a full storage */ }
    save(chat);
  }

  /* ---- pictures ---- */

  const sees = () => {
    const m = models.find((one) => one.id === $("model").value);
    return !!m && Array.isArray(m.capabilities) && m.capabilities.includes("vision");
  };
  function paint_sees() {
    $("attach").hidden = !sees();
  }
  function paint_pictures() {
    $("images").hidden = !pictures.length;
    $("images").replaceChildren(make("div", { className: "pictures" }, ...pictures.map((url, i) => {
      const remove = make("button", { type: "button" }, "Remove");
      remove.addEventListener("click", () => {
        pictures.splice(i, 1);
        paint_pictures();
      });
      return make("figure", {}, make("img", { src: url, alt: "Picture " + (i + 1) }), remove);
    })));
  }
  /* Smaller, if it is large: models scale pictures down anyway, and the browser keeps 5 MB of conversations. */
  async function add_pictures(files) {
    for (const file of files) {
      if (!/^image\/(png|jpeg|webp|gif)$/.test(file.type)) {
        say("lost", "Pictures are PNG, JPEG, WebP or GIF");
        continue;
      }
      try {
        const bitmap = await createImageBitmap(file), scale = Math.min(1, MAX_PICTURE / Math.max(bitmap.width, bitmap.height));
        const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
        canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
        pictures.push(canvas.toDataURL(file.type === "image/png" && file.size < 200000 ? "image/png" : "image/jpeg", 0.9));
      } catch (e) {
        say("lost", "This picture cannot be read");
      }
    }
    paint_pictures();
  }
  $("file").addEventListener("change", () => {
    add_pictures([...$("file").files]);
    $("file").value = "";
  });
  for (const name of ["dragover", "dragleave", "drop"])
    document.addEventListener(name, (e) => {
      if (![...e.dataTransfer.types].includes("Files")) return;
      e.preventDefault(); /* a file that is dropped beside it must not replace the page */
      $("composer").classList.toggle("over", name === "dragover" && sees());
      if (name !== "drop") return;
      if (sees()) add_pictures([...e.dataTransfer.files]);
      else say("lost", "This model does not see pictures");
    });
  $("say").addEventListener("paste", (e) => {
    const files = [...e.clipboardData.files];
    if (!files.length || !sees()) return;
    e.preventDefault();
    add_pictures(files);
  });

  /* ---- models and the key ---- */

  async function load_models() {
    const answer = await fetch("v1/models", { headers: headers(), cache: "no-store" });
    if (answer.status === 401) {
      ask_key(Page.get_key() ? "This key is not one of the server's." : "");
      return;
    }
    const m = await answer.json();
    if (!answer.ok) throw Object.assign(new Error("models"), { told: explain(answer.status, m.error, answer) });
    const chosen = $("model").value || (chat && chat.model) || localStorage.getItem("radish-model") || "";
    models = m.data;
    const option = (one) => {
      const state = one.status && one.status.value !== "loaded" ? ` (${one.status.value === "unloaded" ? "loads when asked" : one.status.value})` : "";
      return make("option", { value: one.id }, one.id + state);
    };
    const loaded = models.find((one) => !one.status || one.status.value === "loaded") || models[0];
    $("model").replaceChildren(...models.map(option));
    $("model").value = models.some((one) => one.id === chosen) ? chosen : loaded ? loaded.id : "";
    $("login").hidden = true;
    paint_sees();
  }
  function ask_key(why) {
    $("refused").textContent = why;
    $("login").hidden = false;
    say("lost", "A key is needed");
    $("key").focus();
  }
  $("login").addEventListener("submit", (e) => {
    e.preventDefault();
    Page.set_key($("key").value.trim());
    connect();
  });
  $("model").addEventListener("change", () => {
    localStorage.setItem("radish-model", $("model").value);
    if (chat) chat.model = $("model").value;
    paint_sees();
  });
  document.addEventListener("visibilitychange", () => document.hidden || load_models().catch(() => null));
  async function connect() {
    for (let wait = 1000; ; wait = Math.min(wait * 2, 15000)) {
      try {
        await load_models();
        if ($("login").hidden && !running) say("live", "Ready");
        return;
      } catch (e) {
        say("lost", e.told || "Not connected: trying again");
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  window.addEventListener("storage", (e) => {
    if (!e.key || !e.key.startsWith(STORE)) return;
    if (chat && e.key === STORE + chat.id && e.newValue && !running) {
      const c = read_chat(e.newValue);
      if (c) show_chat(c);
    } else paint_list();
  });
  window.addEventListener("pagehide", () => {
    if (running) save(running.chat);
  });

  Dialogs(() => load_models().catch(() => null), async (name) => {
    await load_models();
    if (!name) return;
    $("model").value = name;
    $("model").dispatchEvent(new Event("change"));
  });
  make_options();
  show_chat(new_chat());
  connect();
  $("say").focus();
})();
