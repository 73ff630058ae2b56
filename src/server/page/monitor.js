"use strict";
/* The monitor page: GET v1/monitor once, then v1/monitor/events, an event a second. Nothing else is asked but the tree
 * (v1/cache), every two seconds while the page is seen. Texts of others are only ever set as text. */
(() => {
  const SVG = "http://www.w3.org/2000/svg", SECONDS = 3600, MINUTES = 1440, RECENT = 100, TREE_NODES = 300;
  const POINTS = 240, W = 400, H = 130, LEFT = 42, BOTTOM = 16, ROW = 18, MAX_BARS = 1200;
  const $ = (id) => document.getElementById(id);
  const data = { at: {}, seconds: [], minutes: [], running: [], recent: [], totals: {}, model: {} };
  let key = sessionStorage.getItem("radish-key") || "", range = 600, last = 0, chosen = "", shown = null;

  /* ---- numbers as people read them ---- */
  const si = (v, digits = 3) => {
    if (v === null || v === undefined || !isFinite(v)) return "–";
    const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (const [n, name] of steps) if (Math.abs(v) >= n) return +(v / n).toPrecision(digits) + " " + name;
    return String(+v.toPrecision(digits));
  };
  const bytes = (v) => si(v).replace(/(\d)$/, "$1 ") + "B";
  const time = (s) => {
    if (s === null || s === undefined || !isFinite(s)) return "–";
    if (s < 0.0995) return +(s * 1e3).toPrecision(3) + " ms";
    if (s < 120) return +s.toPrecision(3) + " s";
    if (s < 7200) return Math.round(s / 60) + " min";
    return s < 172800 ? +(s / 3600).toPrecision(3) + " h" : +(s / 86400).toPrecision(3) + " days";
  };
  const ms = (v) => (v > 0 ? time(v / 1e3) : "");
  const percent = (a, b) => (b > 0 ? Math.round((100 * a) / b) + " %" : "–");
  const whole = (v) => Number(v || 0).toLocaleString("en");

  const clock = (s) => (s > 0 ? new Date(s * 1e3).toLocaleTimeString() : "–");

  function make(name, props = {}, ...children) {
    const e = document.createElement(name);
    Object.assign(e, props);
    e.append(...children);
    return e;
  }
  function draw(parent, name, attributes = {}, text = "") {
    const e = document.createElementNS(SVG, name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (text !== "") e.textContent = text;
    parent.append(e);
    return e;
  }

  /* ---- what is shown ---- */
  const page_bytes = () => (data.totals.page_tokens || 0) * (data.model.kv_bytes_per_token || 0);
  const CHARTS = [
    { title: "Speed", unit: "tokens/s", series: [["generated", "generated", 3], ["prompts", "computed", 1]] },
    { title: "Time to the first token", unit: "s", show: time, series: [["half within", "ttft_p50", 1], ["95 of 100 within", "ttft_p95", 2]] },
    { title: "Between tokens", unit: "s", show: time, series: [["half within", "gap_p50", 1], ["99 of 100 within", "gap_p99", 2]] },
    { title: "Prompt tokens", unit: "tokens/s", stack: true, series: [["computed", "computed", 2], ["device", "device", 3], ["joined", "joined", 5], ["RAM", "ram", 1], ["disk", "disk", 4]] },
    { title: "Matches", unit: "requests/s", stack: true, series: [["miss", "match_miss", 6], ["exact", "match_exact", 3], ["prefix", "match_prefix", 1], ["longer stored", "match_supersequence", 5], ["common beginning", "match_lcp", 7]] },
    { title: "KV memory", unit: "bytes", stack: true, show: bytes, scale: page_bytes, top: () => data.totals.pages * page_bytes(), series: [["in use", "pages_locked", 2], ["being computed", "pages_pending", 7], ["stored", "pages_ready", 3], ["free", "pages_free", 6]] },
    { title: "Requests", unit: "requests", stack: true, series: [["decode", "decode", 3], ["prefill", "prefill", 1], ["waiting for another", "waiting", 5], ["loading", "loading", 4], ["queued", "queued", 2], ["preparing", "preparing", 7]] },
    { title: "Batch", unit: "in a step", series: [["sequences", "step_sequences", 3, 1, "steps"], ["tokens", "step_tokens", 1, 1, "steps"]] },
    { title: "The step loop's time", unit: "ms/s", stack: true, series: [["forward", "forward", 1], ["sample", "sample", 3], ["plan", "plan", 7], ["output", "output", 4]] },
    { title: "Stored entries", unit: "by where they end", stack: true, series: [["up to 256 tokens", "depth_256", 3], ["1 k", "depth_1k", 1], ["4 k", "depth_4k", 5], ["16 k", "depth_16k", 7], ["64 k", "depth_64k", 2], ["deeper", "depth_more", 4]] },
    { title: "Evicted, and the disk", unit: "bytes/s", show: bytes, series: [["evicted", "evicted_bytes", 2], ["written", "disk_written", 4], ["read", "disk_read", 1]] },
    { title: "Age of what was evicted", unit: "since its last use", show: time, series: [["half younger than", "evicted_age_p50", 2]] },
    { title: "Host memory behind the GPU", unit: "bytes", show: bytes, scale: page_bytes, there: () => data.totals.ram_cap_pages > 0, top: () => data.totals.ram_cap_pages * page_bytes(), series: [["stored", "ram_pages", 1]] },
    { title: "Disk cache", unit: "bytes", show: bytes, there: () => data.totals.disk_cap_bytes > 0, top: () => data.totals.disk_cap_bytes, series: [["stored", "disk_bytes", 4]] },
    { title: "The process", unit: "bytes", show: bytes, series: [["resident, own", "rss_anon", 1], ["taken", "memory_used", 6]] },
  ];
  const now = (name) => {
    const row = data.seconds[data.seconds.length - 1];
    return row && name in data.at ? row[data.at[name]] : null;
  };
  const mean = (name, n) => {
    let sum = 0, count = 0;
    for (const row of data.seconds.slice(-n)) {
      const v = row[data.at[name]];
      if (v !== null) sum += v, count++;
    }
    return count ? sum / count : null;
  };
  const waiting = () => ["preparing", "queued", "loading", "waiting"].reduce((sum, name) => sum + now(name), 0);
  const TILES = [
    ["running", () => si(now("decode") + now("prefill"))],
    ["waiting", () => si(waiting())],
    ["generated tokens/s", () => si(mean("generated", 5))],
    ["prompt tokens/s computed", () => si(mean("computed", 5))],
    ["to the first token, 95 of 100", () => time(mean("ttft_p95", 60))],
    ["between tokens, half", () => time(mean("gap_p50", 10))],
    ["of prompt tokens were cached", () => percent(data.totals.cached, data.totals.prompt)],
    ["of the pages are in use", () => percent(now("pages_locked") + now("pages_pending"), data.totals.pages)],
  ];

  /* ---- charts ---- */
  const rows = () => {
    const all = range > SECONDS ? data.minutes.concat(data.seconds.slice(-60)) : data.seconds;
    return all.filter((r) => r[0] > last - range);
  };
  /* [time, values..] with as many points as can be told apart: each is the mean of its rows. */
  function points(chart, all) {
    const factor = chart.scale ? chart.scale() : 1, out = [], per = range / POINTS;
    let slot = null;
    for (const row of all) {
      const at = Math.floor(row[0] / per);
      if (!slot || slot.at !== at) out.push((slot = { at, t: row[0], sums: chart.series.map(() => 0), n: chart.series.map(() => 0) }));
      slot.t = row[0];
      chart.series.forEach(([, name, , own = 1, per], i) => {
        const v = per ? (row[data.at[per]] > 0 ? row[data.at[name]] / row[data.at[per]] : null) : row[data.at[name]];
        if (v !== null && v !== undefined) slot.sums[i] += v * factor * own, slot.n[i]++;
      });
    }
    return out.map((s) => ({ t: s.t, values: s.sums.map((v, i) => (s.n[i] ? v / s.n[i] : null)) }));
  }
  function nice(top) {
    if (!(top > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(top));
    return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((f) => f * power >= top * 0.999) * power;
  }
  function line_of(dots) {
    let path = "", open = false;
    for (const d of dots) {
      if (d === null) open = false;
      else path += (open ? "L" : "M") + d[0].toFixed(1) + " " + d[1].toFixed(1), open = true;
    }
    return path;
  }
  function paint_chart(chart, all) {
    const p = points(chart, all), gap = (range > SECONDS ? 150 : Math.max(4, (2.5 * range) / POINTS));
    const show = chart.show || si;
    chart.figure.hidden = !!chart.there && !chart.there();
    if (chart.figure.hidden) return;
    let top = chart.top ? chart.top() : 0;
    for (const d of p) {
      const sum = d.values.reduce((a, b) => (chart.stack ? a + (b || 0) : Math.max(a, b || 0)), 0);
      top = Math.max(top, sum);
    }
    top = chart.top ? top : nice(top);
    const x = (t) => LEFT + ((t - last + range) / range) * (W - LEFT), y = (v) => (H - BOTTOM) * (1 - v / top) + 4;
    const svg = chart.svg;
    svg.replaceChildren();
    for (const share of [0, 0.5, 1]) {
      draw(svg, "path", { class: "grid", d: `M${LEFT} ${y(top * share)}H${W}` });
      draw(svg, "text", { x: LEFT - 5, y: y(top * share) + 4, "text-anchor": "end" }, share ? show(top * share) : "0");
    }
    for (const share of [0, 0.5]) draw(svg, "text", { x: LEFT + share * (W - LEFT), y: H + 4 }, "−" + time(range * (1 - share)));
    draw(svg, "text", { x: W, y: H + 4, "text-anchor": "end" }, "now");
    const below = p.map(() => 0);
    chart.series.forEach(([, , colour], i) => {
      if (chart.stack && p.every((d) => !d.values[i])) return; /* a line of its colour would lie on the one below */
      if (chart.stack) {
        let parts = [], run = null;
        p.forEach((d, k) => {
          const low = below[k], high = (below[k] += d.values[i] || 0);
          if (!run || d.t - p[k - 1].t > gap) parts.push((run = [[], []]));
          run[0].push([x(d.t), y(high)]);
          run[1].unshift([x(d.t), y(low)]);
        });
        const path = parts.map(([a, b]) => line_of(a) + "L" + line_of(b).slice(1) + "Z").join("");
        if (path) draw(svg, "path", { class: "area k" + colour, d: path });
        return;
      }
      const dots = [];
      p.forEach((d, k) => {
        if (k && d.t - p[k - 1].t > gap) dots.push(null);
        dots.push(d.values[i] === null ? null : [x(d.t), y(d.values[i])]);
      });
      const lonely = dots.filter((d, k) => d && !dots[k - 1] && !dots[k + 1]);
      draw(svg, "path", { class: "line k" + colour, d: line_of(dots) });
      for (const d of lonely) draw(svg, "path", { class: "line k" + colour, d: `M${d[0] - 1} ${d[1]}h2` });
    });
    const at = chart.pointer === null ? p[p.length - 1] : p.reduce((a, b) => (Math.abs(x(b.t) - chart.pointer) < Math.abs(x(a.t) - chart.pointer) ? b : a), p[0]);
    if (at && chart.pointer !== null) draw(svg, "path", { class: "cursor", d: `M${x(at.t)} 4V${H - BOTTOM + 4}` });
    chart.when.textContent = at && chart.pointer !== null ? new Date(at.t * 1e3).toLocaleTimeString() : chart.unit;
    const told = chart.series.map(([name], i) => [name, at ? show(at.values[i]) : "–"]);
    told.forEach(([, value], i) => (chart.values[i].textContent = value));
    svg.setAttribute("aria-label", chart.title + ", " + chart.unit + ": " + told.map((t) => t.join(" ")).join(", "));
  }
  function make_charts() {
    for (const chart of CHARTS) {
      chart.pointer = null;
      chart.svg = draw($("charts"), "svg", { viewBox: `0 0 ${W} ${H + 8}`, preserveAspectRatio: "none", role: "img" });
      chart.svg.setAttribute("preserveAspectRatio", "xMidYMid meet");
      chart.svg.setAttribute("aria-label", chart.title);
      chart.when = make("span", { className: "unit" });
      chart.values = chart.series.map(() => make("b"));
      const legend = make("ul", { className: "legend" });
      chart.series.forEach(([name, , colour], i) => legend.append(make("li", {}, make("i", { className: "k" + colour }), name + " ", chart.values[i])));
      chart.figure = make("figure", {}, make("figcaption", {}, chart.title + " ", chart.when), chart.svg, legend);
      $("charts").append(chart.figure);
      chart.svg.addEventListener("pointermove", (e) => {
        const box = chart.svg.getBoundingClientRect(), scale = Math.min(box.width / W, box.height / (H + 8));
        chart.pointer = (e.clientX - box.left - (box.width - W * scale) / 2) / scale;
        paint_chart(chart, rows());
      });
      chart.svg.addEventListener("pointerleave", () => {
        chart.pointer = null;
        paint_chart(chart, rows());
      });
    }
  }

  /* ---- the tree: depth in tokens from left to right, a row for each leaf ---- */
  function heat(node) {
    if (node.computed < node.tokens) return ["k7 h0", "being computed"];
    if (node.locks > 0) return ["k2 h0", "in use by " + node.locks];
    const level = node.age_s < 10 ? 0 : node.age_s < 60 ? 1 : node.age_s < 600 ? 2 : 3;
    return ["k3 h" + level, "last used " + time(node.age_s) + " ago"];
  }
  function lay_out(nodes) {
    const stack = [];
    let leaves = 0;
    nodes.forEach((n) => {
      stack.length = n.depth - 1;
      n.up = stack[n.depth - 2] || null;
      n.path = (n.up ? n.up.path + "/" : "") + n.start + ":" + n.tokens + ":" + n.text.slice(0, 24);
      n.children = 0;
      n.below = 0;
      if (n.up) n.up.children++;
      stack[n.depth - 1] = n;
    });
    nodes.forEach((n) => {
      n.row = leaves;
      if (!n.children) {
        leaves++;
        for (let up = n; up; up = up.up) up.below++;
      }
    });
    return leaves;
  }
  function choose(node) {
    chosen = node.path;
    const box = $("node"), state = heat(node)[1];
    box.hidden = false;
    box.replaceChildren(
      make("b", {}, `${whole(node.tokens)} tokens from ${whole(node.start)} on`),
      ` · ${state} · ${node.below > 1 ? "shared by " + node.below + " continuations" : "goes to one end"} · ${bytes(node.bytes)} · ${node.hits === 1 ? "1 hit" : whole(node.hits) + " hits"} · stored ${clock(node.created)}, last used ${clock(node.last_use)}${node.images ? ` · ${whole(node.images)} rows of images` : ""}${node.kept === "plain" ? "" : " · kept as " + node.kept}`,
      make("pre", {}, node.text || "(no text)"));
    for (const r of $("tree").querySelectorAll("rect")) r.classList.toggle("chosen", r.dataset.path === chosen);
  }
  function paint_tree() {
    if (!shown) return;
    const svg = $("tree"), nodes = shown.nodes, leaves = lay_out(nodes);
    const end = nodes.reduce((m, n) => Math.max(m, n.start + n.tokens), 1), width = Math.max($("tree-scroll").clientWidth - 8, 200);
    const x = (t) => (Math.sqrt(t) / Math.sqrt(end)) * width; /* a short prompt beside a long one is still seen */
    const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.path : "";
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("height", Math.max(1, leaves) * ROW);
    nodes.slice(0, MAX_BARS).forEach((n, i) => {
      const [colour, state] = heat(n), left = x(n.start), wide = Math.max(2, x(n.start + n.tokens) - left);
      const r = draw(svg, "rect", { x: left, y: n.row * ROW, width: wide, height: Math.max(1, n.below) * ROW - 2, rx: 2, class: colour + (n.path === chosen ? " chosen" : ""), role: "button", tabindex: i ? -1 : 0, "aria-label": `${n.tokens} tokens from ${n.start} on, ${state}, ${n.below} ends below` });
      r.dataset.path = n.path;
      r.addEventListener("click", () => choose(n));
      if (wide > 34) draw(svg, "text", { x: left + 4, y: n.row * ROW + 12 }, (n.locks > 1 ? "×" + n.locks + " " : "") + si(n.tokens) + (wide > 120 ? " " + n.text.replace(/\s+/g, " ").slice(0, Math.floor((wide - 50) / 7)) : ""));
      if (n.path === focus) r.focus();
    });
    svg.onkeydown = (e) => {
      const bars = [...svg.querySelectorAll("rect")], i = bars.indexOf(document.activeElement);
      const to = { ArrowDown: i + 1, ArrowRight: i + 1, ArrowUp: i - 1, ArrowLeft: i - 1, Home: 0, End: bars.length - 1 }[e.key];
      if (e.key === "Enter" || e.key === " ") choose(nodes[i]);
      else if (to === undefined || !bars[to]) return;
      else bars[to].focus();
      e.preventDefault();
    };
    $("tree-note").textContent = nodes.length
      ? `${whole(now("tree_tokens"))} tokens in ${whole(now("tree_nodes"))} nodes${shown.more ? `; the first ${nodes.length} are drawn` : ""}. From left to right the tokens of a text (square root), from top to bottom its continuations.`
      : "Nothing is stored yet.";
  }

  /* ---- the same as a table ---- */
  const line = (n) => n.text.replace(/\s+/g, " ").slice(0, 60);
  const ENTRIES = [
    ["Text", line, line, "left text"],
    ["From token", (n) => whole(n.start), (n) => n.start],
    ["Tokens", (n) => whole(n.tokens), (n) => n.tokens],
    ["Bytes", (n) => bytes(n.bytes), (n) => n.bytes],
    ["Hits", (n) => whole(n.hits), (n) => n.hits],
    ["In use by", (n) => (n.locks ? whole(n.locks) : ""), (n) => n.locks],
    ["Stored", (n) => clock(n.created), (n) => n.created],
    ["Last used", (n) => time(n.age_s) + " ago", (n) => -n.age_s],
    ["Images", (n) => (n.images ? whole(n.images) : ""), (n) => n.images],
    ["Kept", (n) => (n.kept === "plain" ? "" : n.kept), (n) => n.kept, "left"],
  ];
  const order = { by: 4, up: false };
  function paint_entries() {
    if (!shown || !$("entries").open) return;
    const value = ENTRIES[order.by][2], sign = order.up ? 1 : -1;
    const sorted = [...shown.nodes].sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0)).slice(0, RECENT);
    [...$("entry-head").children].forEach((th, i) => (i === order.by ? th.setAttribute("aria-sort", order.up ? "ascending" : "descending") : th.removeAttribute("aria-sort")));
    $("entry-rows").replaceChildren(...sorted.map((n) => make("tr", {}, ...ENTRIES.map(([, text, , style = ""]) => make("td", { className: style }, text(n))))));
  }
  function make_entries() {
    ENTRIES.forEach(([name, , , style = ""], i) => {
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => {
        order.up = order.by === i ? !order.up : i < 2;
        order.by = i;
        paint_entries();
      });
      $("entry-head").append(make("th", { scope: "col", className: style.split(" ")[0] }, button));
    });
    $("entries").addEventListener("toggle", paint_entries);
  }

  /* ---- requests ---- */
  const COLUMNS = [
    ["State", (r) => (r.end ? (r.end === "cancelled" ? "cancelled in " + r.phase : r.end) : r.phase) + (r.warms ? " (warms)" : ""), "left"],
    ["", () => "", "left"],
    ["Id", (r) => r.label || "#" + r.id, "left id"],
    ["Age", (r) => time(r.age_s)],
    ["Prompt", (r) => whole(r.tokens.prompt)],
    ["Cached", (r) => (!r.end && !r.ms.prefill && !r.tokens.done ? "" : r.end || r.phase === "decode" ? percent(r.tokens.cached, r.tokens.prompt) : percent(r.tokens.done, r.tokens.prompt) + " done")],
    ["Match", (r) => (r.ms.prefill || r.end ? `${r.match.kind} ${Math.round(r.match.percent)} %` : ""), "left"],
    ["Why not more", (r) => (r.match.miss === "none" || !(r.ms.prefill || r.end) ? "" : r.match.miss.replace("_", " ")), "left"],
    ["Generated", (r) => whole(r.tokens.generated)],
    ["Queue", (r) => ms(r.ms.queue)],
    ["First token", (r) => ms(r.ms.ttft)],
    ["Prompt/s", (r) => (r.prefill_tok_s ? si(r.prefill_tok_s) : "")],
    ["Tokens/s", (r) => (r.decode_tok_s ? si(r.decode_tok_s) : "")],
    ["Gap p50", (r) => ms(r.ms.gap_p50)],
    ["Gap p99", (r) => ms(r.ms.gap_p99)],
  ];
  async function cancel(id, button) {
    button.disabled = true;
    const answer = await fetch("v1/monitor/requests/" + id, { method: "DELETE", headers: headers() }).catch(() => null);
    button.textContent = answer && (answer.ok || answer.status === 404) ? "cancelled" : "failed";
  }
  function row_of(r) {
    const tr = make("tr");
    for (const [name, value, style = ""] of COLUMNS) {
      const text = String(value(r)), td = make("td", { className: style }, text);
      if (style.includes("id")) td.title = text;
      if (!name && !r.end) {
        const button = make("button", { type: "button" }, "Cancel");
        button.setAttribute("aria-label", "Cancel " + (r.label || "#" + r.id));
        button.dataset.id = r.id;
        button.addEventListener("click", () => cancel(r.id, button));
        td.append(button);
      }
      tr.append(td);
    }
    return tr;
  }
  function paint_requests() {
    const focus = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : undefined;
    $("running").replaceChildren(...data.running.map(row_of));
    $("recent").replaceChildren(...data.recent.slice(-RECENT).reverse().map(row_of));
    if (focus) for (const b of $("running").querySelectorAll("button")) if (b.dataset.id === focus) b.focus();
    if (!data.running.length && !data.recent.length) $("recent").replaceChildren(make("tr", {}, make("td", { colSpan: COLUMNS.length }, "No request has come yet.")));
  }

  /* ---- the rest ---- */
  function paint_totals() {
    const t = data.totals, speed = t.prefill_tok_s;
    const list = [
      ["prompt tokens", whole(t.prompt)], ["of them computed", whole(t.computed)], ["saved by the cache", whole(t.cached)],
      ["time saved, about", speed > 0 ? time(t.cached / speed) : "–"], ["generated tokens", whole(t.generated)],
      ["requests", whole(t.requests)], ["cancelled", whole(t.cancelled)], ["failed", whole(t.failed)],
      ["refused: queue full", whole(t.rejected)], ["pages evicted", whole(t.evicted)], ["bytes evicted", bytes(t.evicted_bytes || 0)], ["running for", time(t.uptime_s)],
    ];
    $("totals").replaceChildren(...list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    const price = parseFloat($("price").value);
    $("money").textContent = price >= 0 ? ((t.cached || 0) / 1e6 * price).toFixed(2) + " saved" : "";
  }
  /* What is nearly used up (more than 80 % of it, until less than 70 %), and what to do. A full cache is as it should be:
   * what was used least gives way; it is told, and is no alarm. */
  const ADVICE = {
    kv_in_use: (share, lost) => `Running requests hold ${share} of the KV memory${lost}: more --kv-bytes or fewer requests at once would help.`,
    memory: (share) => `The process has taken ${share} of its memory: soon requests fail; a larger --memory-limit, or a smaller --kv-bytes, would help.`,
    kv: (share, lost) => `${share} of the KV memory hold something${lost}: the least recently used gives way; a larger --kv-bytes keeps more.`,
    ram: (share) => `The host memory behind the GPU is used to ${share}: the least recently used gives way; a larger --cache-ram keeps more.`,
    disk: (share) => `The disk cache is used to ${share}: the least recently used gives way; a larger --cache-disk keeps more.`,
  };
  function tell(id, names) {
    const evicted = mean("evicted_bytes", 60), age = mean("evicted_age_p50", 60);
    const lost = evicted > 0 ? `, and ${bytes(evicted)} a second give way${age === null ? "" : ", half of it unused for less than " + time(age)}` : "";
    const budgets = data.totals.budgets || {};
    const texts = names.filter((name) => budgets[name] && (data.totals.above || []).includes(name)).map((name) => ADVICE[name](percent(budgets[name].used, budgets[name].limit), lost));
    const kinds = names.filter((name) => (data.totals.above || []).includes(name)).join(" ");
    $(id).hidden = !texts.length;
    /* an alarm is read out whenever it changes: not for each second's numbers */
    if ($(id).dataset.kinds !== kinds || id !== "pressure") $(id).textContent = texts.join(" ");
    $(id).dataset.kinds = kinds;
  }
  function paint_pressure() {
    tell("pressure", ["kv_in_use", "memory"]);
    tell("full", ["kv", "ram", "disk"]);
  }
  let painting = false;
  function paint() {
    if (painting || document.hidden) return;
    painting = true;
    requestAnimationFrame(() => {
      painting = false;
      TILES.forEach(([, value], i) => ($("tiles").children[i].firstChild.textContent = data.seconds.length ? value() : "–"));
      const all = rows();
      CHARTS.forEach((c) => paint_chart(c, all));
      paint_requests();
      paint_totals();
      paint_pressure();
    });
  }
  function say(state, text) {
    if ($("state").textContent !== text) $("state").textContent = text;
    $("state").className = state;
  }

  /* ---- data ---- */
  const headers = () => (key ? { Authorization: "Bearer " + key } : {});
  class NoKey extends Error {}
  async function ask(path, options = {}) {
    const answer = await fetch(path, { headers: headers(), cache: "no-store", ...options });
    if (answer.status === 401 || answer.status === 403) throw new NoKey(key ? "This key may not see the monitor." : "");
    if (!answer.ok) throw new Error("HTTP " + answer.status);
    return answer;
  }
  function take_row(row) {
    if (row[0] <= last) return;
    last = row[0];
    data.seconds.push(row);
    if (data.seconds.length > SECONDS) data.seconds.shift();
    const since = data.minutes.length ? data.minutes[data.minutes.length - 1][0] : data.seconds[0][0];
    if (last - since < 60) return;
    const minute = data.seconds.slice(-60);
    data.minutes.push(row.map((v, i) => (i ? minute.reduce((a, r) => a + (r[i] || 0), 0) / minute.length : v)));
    if (data.minutes.length > MINUTES) data.minutes.shift();
  }
  function take(m) {
    data.running = m.running;
    data.totals = m.totals;
    const newest = data.recent.length ? data.recent[data.recent.length - 1].number : -1;
    for (const r of data.recent) r.age_s += 1;
    data.recent = data.recent.concat(m.recent.filter((r) => r.number > newest)).slice(-RECENT);
    if (m.row) take_row(m.row);
  }
  async function load() {
    const m = await (await ask(`v1/monitor?seconds=${SECONDS}&minutes=${MINUTES}`)).json();
    m.columns.forEach((c, i) => (data.at[c.name] = i));
    Object.assign(data, { seconds: m.seconds, minutes: m.minutes, model: m.model, recent: [] });
    last = m.seconds.length ? m.seconds[m.seconds.length - 1][0] : 0;
    take(m);
    $("model").textContent = [m.model.id, m.model.quantization, "KV " + m.model.kv_type, m.model.backend, "radish " + m.model.version].filter(Boolean).join(" · ");
    document.title = "radish · " + m.model.id;
  }
  async function listen() {
    const reader = (await ask("v1/monitor/events")).body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the stream ended");
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts)
        if (part.startsWith("data: ")) {
          take(JSON.parse(part.slice(6)));
          say("live", "Live");
          paint();
        }
    }
  }
  async function watch_tree() {
    for (;;) {
      if (!document.hidden && data.seconds.length) {
        try {
          shown = await (await ask("v1/cache?limit=" + TREE_NODES)).json();
          requestAnimationFrame(() => {
            paint_tree();
            paint_entries();
          });
        } catch (e) { /* the stream says that the server is gone */ }
      }
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
  async function run() {
    for (let wait = 1000; ; wait = Math.min(wait * 2, 15000)) {
      try {
        await load();
        $("login").hidden = true;
        say("live", "Live");
        wait = 1000;
        paint();
        await listen();
      } catch (e) {
        if (e instanceof NoKey) {
          say("lost", "A key is needed");
          $("refused").textContent = e.message;
          $("login").hidden = false;
          return;
        }
        say("lost", "Not connected: trying again");
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  TILES.forEach(([name]) => $("tiles").append(make("div", { className: "tile" }, make("b", {}, "–"), make("span", {}, name))));
  COLUMNS.forEach(([name, , style = ""]) => $("head").append(make("th", { scope: "col", className: style.split(" ")[0] }, name || make("span", { className: "hidden" }, "Cancel"))));
  for (const [style, name] of [["k2", "in use"], ["k7", "being computed"], ["k3", "stored; paler: longer unused"]]) $("tree-legend").append(make("li", {}, make("i", { className: style }), name));
  make_charts();
  make_entries();
  $("range").addEventListener("change", (e) => {
    range = Number(e.target.value);
    paint();
  });
  $("price").value = localStorage.getItem("radish-price") || "";
  $("price").addEventListener("input", () => {
    localStorage.setItem("radish-price", $("price").value);
    paint_totals();
  });
  $("login").addEventListener("submit", (e) => {
    e.preventDefault();
    key = $("key").value.trim();
    sessionStorage.setItem("radish-key", key);
    say("", "Connecting");
    run();
  });
  document.addEventListener("visibilitychange", paint);
  window.addEventListener("resize", () => requestAnimationFrame(paint_tree));
  run();
  watch_tree();
})();
