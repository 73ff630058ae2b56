"use strict";
/* Two dialogs of the chat page: settings of the next load (v1/settings), and models of the hub (v1/hub/models, v1/downloads).
 * on_loaded: the model was loaded again; on_models(name): there may be others, and the next message is for that one, or for the
 * one before where name is "".
 * Both are for whoever runs the server; what it says of them, and of the hub, is only ever set as text.
 */
const Dialogs = (on_loaded, on_models) => {
  const { make, action, whole, bytes } = Page, ask = Page.ask, $ = (id) => document.getElementById(id);
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  function tell(id, text, wrong = false) {
    $(id).textContent = text;
    $(id).className = wrong ? "told wrong" : "told";
  }
  const failed = (id) => (e) => tell(id, e.message, true);

  /* ---- settings ---- */

  let settings = [], busy = false;
  const shown = (text, row) => (text === "" ? `default (${row.default})` : text);

  function field_of(row) {
    const id = "s-" + row.name;
    let input;
    if (row.choices) {
      input = make("select", {}, make("option", { value: "" }, "default"), ...row.choices.map((one) => make("option", { value: one }, one)));
    } else {
      input = make("input", { type: row.kind === "number" ? "number" : "text", placeholder: row.default, autocomplete: "off", spellcheck: false });
      if (row.kind === "number") Object.assign(input, { min: row.min, step: 1 });
      if (row.kind === "number" && row.max > 0) input.max = row.max;
    }
    input.id = id;
    input.value = row.next;
    input.setAttribute("aria-describedby", id + "-help");
    const note = make("span", { className: "note", id: id + "-help" }, `${row.help}. Now: ${shown(row.now, row)}${row.next !== row.now ? `; with the next load: ${shown(row.next, row)}` : ""}`);
    const field = make("div", { className: "field" }, make("label", { htmlFor: id }, row.flag), input, note);
    if (row.known) {
      field.append(make("datalist", { id: id + "-known" }, ...row.known.map((one) => make("option", { value: one }))));
      input.setAttribute("list", id + "-known");
    }
    return field;
  }
  function paint_settings(answer) {
    settings = answer.settings;
    $("fields").replaceChildren(...settings.map(field_of));
    $("fixed").replaceChildren(...answer.needs_restart.map((row) => make("li", {}, make("code", {}, row.flag), " " + row.help)));
    const flags = settings.filter((row) => row.next !== row.kept && row.next !== "").map((row) => `${row.flag} ${row.next}`);
    $("keep").hidden = !flags.length;
    $("settings-save").disabled = answer.config.refused !== "";
    if (answer.config.refused) $("settings-save").checked = false;
    $("save-note").textContent = answer.config.refused || answer.config.file;
    $("keep-flags").textContent = flags.join(" ");
    if (answer.failure) tell("settings-told", "The last load could not have them, and took those before: " + answer.failure, true);
  }
  const changed = () => settings.filter((row) => $("s-" + row.name).value.trim() !== row.next);

  async function wait_for_load() {
    for (;;) {
      const answer = await ask("v1/settings");
      if (!answer.reloading) return answer;
      tell("settings-told", "Waiting for running answers to end, then loading");
      await wait(500);
    }
  }
  async function apply(reload) {
    if (busy) return;
    const bad = settings.find((row) => !$("s-" + row.name).checkValidity());
    if (bad) {
      $("s-" + bad.name).focus();
      return tell("settings-told", `${bad.flag}: ${$("s-" + bad.name).validationMessage}`, true);
    }
    busy = true;
    const save = $("settings-save").checked;
    const values = Object.fromEntries(changed().map((row) => [row.name, $("s-" + row.name).value.trim()]));
    const names = changed().map((row) => `${row.flag} from ${shown(row.next, row)} to ${shown($("s-" + row.name).value.trim(), row)}`);
    try {
      let answer = await ask("v1/settings", "POST", { settings: values, reload, save });
      if (reload) answer = await wait_for_load();
      tell("settings-told", `${names.length ? "Changed: " + names.join(", ") : "Nothing was changed"}. ${reload ? "The model was loaded again." : names.length ? "It holds from the model's next load on." : ""}${save ? " The next start has it, too." : ""}`);
      paint_settings(answer);
      if (reload) on_loaded();
    } catch (e) {
      failed("settings-told")(e);
      const wrong = settings.find((row) => e.message.startsWith(row.name + ":"));
      if (wrong) $("s-" + wrong.name).focus();
    }
    busy = false;
  }
  async function open_settings() {
    tell("settings-told", "");
    $("fields").replaceChildren();
    $("settings").showModal();
    try {
      paint_settings(await ask("v1/settings"));
      const first = $("fields").querySelector("input, select");
      if (first) first.focus();
    } catch (e) {
      failed("settings-told")(e);
    }
  }
  $("settings-button").addEventListener("click", open_settings);
  $("settings-form").addEventListener("submit", (e) => {
    e.preventDefault();
    apply(false);
  });
  $("settings-load").addEventListener("click", () => apply(true));
  $("settings-start").addEventListener("click", () => {
    for (const row of settings) $("s-" + row.name).value = row.start;
    tell("settings-told", "As at the start: not applied yet");
  });

  /* ---- models of the hub ---- */

  let watching = false, served = "";

  async function search(words) {
    tell("hub-told", "Asking the hub");
    $("found").replaceChildren();
    const answer = await ask("v1/hub/models?search=" + encodeURIComponent(words));
    tell("hub-told", answer.data.length ? `${answer.data.length} of ${answer.hub}, the most downloaded first` : `${answer.hub} has none of that name`);
    $("found").replaceChildren(...answer.data.map((m) => {
      const facts = [`${whole(m.downloads)} downloads`, m.gguf ? "GGUF" : "", m.gated ? "gated: needs HF_TOKEN" : ""].filter(Boolean).join(" · ");
      const li = make("li", {}, make("b", {}, m.id), make("span", { className: "note" }, facts), action("Look", "look", "Which files " + m.id + " has"));
      li.dataset.id = m.id;
      return li;
    }));
  }
  async function look(li) {
    const id = li.dataset.id;
    tell("hub-told", `Looking at ${id}`);
    const answer = await ask("v1/hub/models/" + id.split("/").map(encodeURIComponent).join("/"));
    tell("hub-told", answer.why || `${id} has ${Page.count(answer.data.length, "quantisation")}`);
    const old = li.querySelector(":scope > ul");
    if (old) old.remove();
    const rows = answer.data.map((v) => {
      const row = make("li", {}, make("span", {}, `${v.label || v.file} · ${bytes(v.bytes)}${v.fits ? "" : " · too big for the memory here"}${v.chosen ? " · best that fits" : ""}`), action("Download", "start", `Download ${id} ${v.label}`));
      row.dataset.model = v.label ? `${id}:${v.label}` : `${id}/${v.file}`;
      return row;
    });
    if (!rows.length) {
      const row = make("li", {}, make("span", {}, "as its makers published it"), action("Download", "start", "Download " + id));
      row.dataset.model = id;
      rows.push(row);
    }
    li.append(make("ul", {}, ...rows));
    li.querySelector(":scope > ul button").focus();
  }
  function row_of(d) {
    const running = d.state === "running" || d.state === "waiting";
    const words = d.state === "done" ? (d.served ? "ready: this server has it" : "fetched; " + d.text) : d.state === "running" && d.total ? `${bytes(d.done)} of ${bytes(d.total)} ${d.file}` : d.state;
    const li = make("li", {}, make("b", {}, d.model), make("span", { className: "note" }, words + (d.state === "failed" || (d.state === "running" && d.text) ? ": " + d.text : "")));
    if (d.state === "running" && d.total) {
      const bar = make("progress", { max: d.total, value: d.done });
      bar.setAttribute("aria-label", "Download of " + d.model);
      li.append(bar);
    }
    if (running) li.append(action("Cancel", "cancel", "Cancel the download of " + d.model));
    if (d.served) li.append(action("Chat", "use", "Chat with " + d.served));
    if (d.state === "failed" || d.state === "cancelled") li.append(action("Try again", "start", "Download " + d.model + " again"));
    li.dataset.id = d.id;
    li.dataset.model = d.model;
    li.dataset.served = d.served;
    return li;
  }
  async function watch() {
    if (watching) return;
    watching = true;
    try {
      for (let running = true; running && $("models").open; ) {
        const list = (await ask("v1/downloads")).data.reverse(), at = document.activeElement && document.activeElement.closest("#downloads li");
        const text = JSON.stringify(list);
        running = list.some((d) => d.state === "running" || d.state === "waiting" || d.state === "cancelling");
        if ($("downloads").dataset.shown !== text) {
          $("downloads").replaceChildren(...list.map(row_of));
          $("downloads").dataset.shown = text;
          const again = at && [...$("downloads").children].find((li) => li.dataset.id === at.dataset.id);
          if (again && again.querySelector("button")) again.querySelector("button").focus();
        }
        $("downloads-title").hidden = !list.length;
        const names = list.map((d) => d.served).join("\n");
        if (!running && $("hub-told").textContent.endsWith("is being downloaded")) tell("hub-told", "");
        if (names !== served) on_models("").catch(() => null);
        served = names;
        if (running) await wait(700);
      }
    } catch (e) {
      failed("hub-told")(e);
    }
    watching = false;
  }
  async function start(model) {
    await ask("v1/downloads", "POST", { model });
    tell("hub-told", `${model} is being downloaded`);
    watch();
  }
  $("models-button").addEventListener("click", () => {
    tell("hub-told", "");
    $("models").showModal();
    $("words").focus();
    watch();
  });
  $("hub-form").addEventListener("submit", (e) => {
    e.preventDefault();
    const words = $("words").value.trim();
    if (words) search(words).catch(failed("hub-told"));
  });
  $("models").addEventListener("click", (e) => {
    const button = e.target.closest("button[data-does]"), li = button && button.closest("li");
    if (!li) return;
    const does = button.dataset.does;
    if (does === "look") look(li).catch(failed("hub-told"));
    else if (does === "start") start(li.dataset.model).catch(failed("hub-told"));
    else if (does === "use") on_models(li.dataset.served).then(() => $("models").close()).catch(failed("hub-told"));
    else if (does === "cancel") ask("v1/downloads/" + li.dataset.id, "DELETE").then(watch).catch(failed("hub-told"));
  });
  for (const b of document.querySelectorAll("dialog button[data-does=close]")) b.addEventListener("click", () => b.closest("dialog").close());
};
