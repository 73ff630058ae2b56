"use strict";
/* Markdown of a model as DOM nodes, while it comes.
 *
 *     const m = new Markdown(box); m.write(text); m.write(longer text); ..
 *
 * The text is foreign: nodes are made one by one, text is only ever text, and of links those to http, https and mailto.
 * Nothing is loaded: a picture is a link to it. Blocks are read line by line and never change once the next one has begun,
 * so only the last is made anew at a write. Every loop is linear in the text, or bounded; what is too long, too deep or
 * has too many elements is shown as it came.
 */
const Markdown = (() => {
  const DEPTH = 6; /* lists and quotes in each other */
  const ELEMENTS = 10000, BYTES = 300000; /* of a text */
  const PARAGRAPH = 20000, PIECE = 8000, SPAN = 5000;
  const FENCE = /^ {0,3}(`{3,40}|~{3,40})[ \t]*([^`\n]{0,200})$/, RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
  const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/, QUOTE = /^ {0,3}>/, ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
  const SPECIAL = /[\\`*_~[!<h\n]/g, ESCAPED = /[!-'*-/:-@^-`{-~]/; /* not ( ) [ ]: they stand for formulas */
  const LINK = /\[([^[\]\n]{0,500})\]\([ \t]*<?([^\s()<>]{1,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)>?(?:[ \t]+"[^"\n]{0,300}")?[ \t]*\)/y;
  const ADDRESS = /https?:\/\/[^\s<>"'`)\]}]{1,2000}/y;
  const WORD = /[\p{L}\p{N}]/u;

  class Enough extends Error {}

  /* What a text may still make. */
  class Maker {
    constructor(n) {
      this.n = n;
    }
    make(name, parent, text) {
      if (--this.n < 0) throw new Enough();
      const e = document.createElement(name);
      if (text !== undefined) e.textContent = text;
      if (parent) parent.append(e);
      return e;
    }
  }

  /* The address as it may stand in a link, or "". */
  function safe_url(address) {
    try {
      const url = new URL(address);
      return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : "";
    } catch (e) {
      return "";
    }
  }
  function put_link(m, parent, url, fill) {
    const a = m.make("a", parent);
    a.href = url;
    a.target = "_blank";
    a.rel = "noopener noreferrer nofollow";
    fill(a);
  }

  /* ---- inside a line ---- */

  /* Marks that are open: at most one of each kind, so closing one moves no node more than a few times. */
  class Inline {
    constructor(m, parent, text, in_link) {
      Object.assign(this, { m, text, in_link, frames: [{ mark: "", box: parent }], waiting: "", no_ticks: new Set() });
    }
    get box() {
      return this.frames[this.frames.length - 1].box;
    }
    flush() {
      if (this.waiting) this.box.append(this.waiting);
      this.waiting = "";
    }
    /* The innermost mark was none. */
    undo() {
      this.flush();
      const { mark, box } = this.frames.pop();
      this.box.append(mark);
      while (box.firstChild) this.box.append(box.firstChild);
    }
    close(at) {
      while (this.frames.length - 1 > at) this.undo();
      this.flush();
      const { box } = this.frames.pop();
      this.box.append(box);
    }
    marks(i) {
      const t = this.text, c = t[i];
      let n = 1;
      while (t[i + n] === c) n++;
      const before = t[i - 1] || " ", after = t[i + n] || " ";
      const opens = /\S/.test(after) && (c === "*" || c === "~" || !WORD.test(before));
      const closes = /\S/.test(before) && (c === "*" || c === "~" || !WORD.test(after));
      for (let left = n; left > 0; ) {
        const at = closes ? this.frames.findLastIndex((f) => f.mark[0] === c && f.mark.length <= left) : -1;
        const mark = c === "~" ? "~~" : left >= 2 ? c + c : c;
        if (at > 0) {
          left -= this.frames[at].mark.length;
          this.close(at);
        } else if (opens && mark.length <= left && n <= 3 && !this.frames.some((f) => f.mark === mark)) {
          this.flush();
          this.frames.push({ mark, box: this.m.make(c === "~" ? "del" : mark.length === 2 ? "strong" : "em") });
          left -= mark.length;
        } else {
          this.waiting += c.repeat(left);
          left = 0;
        }
      }
      return i + n;
    }
    ticks(i) {
      const t = this.text;
      let n = 1;
      while (t[i + n] === "`") n++;
      const run = t.slice(i, i + n);
      if (n <= 8 && !this.no_ticks.has(n)) {
        for (let j = t.indexOf(run, i + n); j >= 0 && j - i < SPAN; j = t.indexOf(run, j)) {
          let k = n;
          while (t[j + k] === "`") k++;
          if (k === n) {
            this.flush();
            const inner = t.slice(i + n, j).replace(/\n/g, " ");
            this.m.make("code", this.box, /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner);
            return j + n;
          }
          j += k;
        }
        this.no_ticks.add(n);
      }
      this.waiting += run;
      return i + n;
    }
    link(i, is_picture) {
      LINK.lastIndex = i + is_picture;
      const found = this.in_link ? null : LINK.exec(this.text);
      if (!found) return 0;
      const [all, label, address] = found, url = safe_url(address), words = is_picture ? "picture: " + (label || address) : label;
      this.flush();
      if (url) put_link(this.m, this.box, url, (a) => (is_picture ? a.append(words) : inline(this.m, a, words || url, true)));
      else this.box.append(is_picture ? `[picture: ${label}]` : `${label} (${address})`);
      return i + is_picture + all.length;
    }
    address(i) {
      ADDRESS.lastIndex = i;
      const found = this.in_link || WORD.test(this.text[i - 1] || " ") ? null : ADDRESS.exec(this.text);
      const address = found ? found[0].replace(/[.,;:!?*_~]{1,9}$/, "") : "", url = address && safe_url(address);
      if (!url) return 0;
      this.flush();
      put_link(this.m, this.box, url, (a) => a.append(address));
      return i + address.length;
    }
    run() {
      const t = this.text;
      for (let i = 0; i < t.length; ) {
        SPECIAL.lastIndex = i;
        const found = SPECIAL.exec(t), at = found ? found.index : t.length, c = t[at];
        this.waiting += t.slice(i, at);
        i = at;
        let to = 0;
        if (i >= t.length) break;
        if (c === "\\" && i + 1 < t.length && ESCAPED.test(t[i + 1])) this.waiting += t[i + 1], to = i + 2;
        else if (c === "\n") this.flush(), this.m.make("br", this.box), to = i + 1;
        else if (c === "`") to = this.ticks(i);
        else if (c === "*" || c === "_" || (c === "~" && t[i + 1] === "~")) to = this.marks(i);
        else if (c === "[") to = this.link(i, 0);
        else if (c === "!" && t[i + 1] === "[") to = this.link(i, 1);
        else if (c === "h") to = this.address(i);
        else if (c === "<" && this.text.startsWith("http", i + 1)) {
          to = this.address(i + 1);
          if (to && t[to] === ">") to++;
        }
        if (!to) this.waiting += c, to = i + 1;
        i = to;
      }
      while (this.frames.length > 1) this.undo();
      this.flush();
    }
  }
  function inline(m, parent, text, in_link = false) {
    if (text.length > PARAGRAPH) parent.append(text);
    else new Inline(m, parent, text, in_link).run();
  }

  /* ---- blocks ---- */

  function cells(line) {
    const out = [];
    let cell = "", code = false;
    for (let i = 0; i < line.length; i++) {
      if (line[i] === "`") code = !code;
      if (line[i] === "\\" && line[i + 1] === "|") cell += "|", i++;
      else if (line[i] === "|" && !code) out.push(cell.trim()), (cell = "");
      else cell += line[i];
    }
    out.push(cell.trim());
    if (out[0] === "" && out.length > 1) out.shift();
    if (out[out.length - 1] === "" && out.length > 1) out.pop();
    return out;
  }
  function is_table(lines, i) {
    const head = lines[i], rule = lines[i + 1];
    if (!rule || !head.includes("|") || !rule.includes("-") || head.length > 4000 || rule.length > 4000) return false;
    const of_rule = cells(rule);
    return of_rule.every((c) => /^:?-+:?$/.test(c)) && of_rule.length === cells(head).length;
  }
  const is_item = (line) => ITEM.test(line) && !RULE.test(line);
  /* Whether a paragraph ends before this line. */
  function begins(lines, i) {
    const s = lines[i];
    return FENCE.test(s) || HEADING.test(s) || QUOTE.test(s) || RULE.test(s) || (is_item(s) && /^ *([-*+]|1[.)]) /.test(s)) || is_table(lines, i);
  }

  function put_fence(m, box, lines, i) {
    const [, mark, info] = FENCE.exec(lines[i]), indent = lines[i].indexOf(mark), body = [];
    const end = new RegExp("^ {0,3}" + mark[0] + "{" + mark.length + ",}[ \\t]*$");
    for (i++; i < lines.length && !end.test(lines[i]); i++) body.push(indent && lines[i].startsWith(" ".repeat(indent)) ? lines[i].slice(indent) : lines[i]);
    const frame = m.make("div", box), bar = m.make("div", frame), pre = m.make("pre", frame);
    frame.className = "code";
    m.make("span", bar, info.trim().split(/\s/)[0] || "text");
    const button = m.make("button", bar, "Copy");
    button.type = "button";
    button.dataset.does = "copy";
    pre.tabIndex = 0;
    m.make("code", pre, body.join("\n"));
    if (body.some((line) => line.length > 2000)) pre.className = "wrap";
    return i + 1;
  }
  function put_heading(m, box, line) {
    const n = HEADING.exec(line)[1].length;
    inline(m, m.make("h" + Math.min(6, n + 2), box), line.trim().slice(n).trim().replace(/ #+$/, ""));
  }
  function put_table(m, box, lines, i) {
    const sides = cells(lines[i + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "middle" : "right") : ""));
    const scroll = m.make("div", box), table = m.make("table", scroll);
    const put_row = (parent, name, line) => {
      const tr = m.make("tr", parent), values = cells(line);
      sides.forEach((side, k) => {
        const cell = m.make(name, tr);
        if (side) cell.className = side;
        inline(m, cell, values[k] || "");
      });
    };
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    put_row(m.make("thead", table), "th", lines[i]);
    const body = m.make("tbody", table);
    for (i += 2; i < lines.length && lines[i].includes("|"); i++) put_row(body, "td", lines[i]);
    return i;
  }
  function put_quote(m, box, lines, i, depth) {
    const inner = [];
    for (; i < lines.length && QUOTE.test(lines[i]); i++) inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
    put_blocks(m, m.make("blockquote", box), inner, depth + 1);
    return i;
  }
  function put_item(m, list, lines, depth) {
    const li = m.make("li", list), task = /^\[([ xX])\] /.exec(lines[0]);
    if (task) lines[0] = (task[1] === " " ? "☐ " : "☑ ") + lines[0].slice(4);
    put_blocks(m, li, lines, depth + 1);
    const first = li.firstChild;
    if (first && first.nodeName === "P") first.replaceWith(...first.childNodes); /* no room between short items */
  }
  function put_list(m, box, lines, i, depth) {
    const kind = ITEM.exec(lines[i])[2], ordered = /\d/.test(kind[0]), list = m.make(ordered ? "ol" : "ul", box);
    if (ordered && parseInt(kind, 10) !== 1) list.start = parseInt(kind, 10);
    while (i < lines.length && is_item(lines[i])) {
      const found = ITEM.exec(lines[i]);
      if (ordered !== /\d/.test(found[2][0]) || (!ordered && found[2] !== kind)) break;
      const wide = found[1].length + found[2].length + (found[3].length || 1), item = [lines[i].slice(wide)];
      for (i++; i < lines.length; i++) {
        const s = lines[i], room = s.length - s.trimStart().length;
        if (s.trim() === "") item.push("");
        else if (room >= wide || (room >= 2 && room > found[1].length && is_item(s.trimStart()))) item.push(s.slice(Math.min(room, wide)));
        else if (lines[i - 1].trim() !== "" && !begins(lines, i) && !is_item(s)) item.push(s.trimStart());
        else break;
      }
      while (item.length > 1 && item[item.length - 1] === "") item.pop();
      put_item(m, list, item, depth);
    }
    return i;
  }
  function put_paragraph(m, box, lines, i) {
    const first = i;
    for (i++; i < lines.length && lines[i].trim() !== "" && !begins(lines, i); i++);
    inline(m, m.make("p", box), lines.slice(first, i).map((s) => s.trim()).join("\n"));
    return i;
  }
  /* Reads lines into blocks; starts: where each begins. */
  function put_blocks(m, box, lines, depth, starts = null) {
    for (let i = 0; i < lines.length; ) {
      const s = lines[i];
      if (s.trim() === "") {
        i++;
        continue;
      }
      if (starts) starts.push({ line: i, nodes: box.childNodes.length, left: m.n });
      if (depth >= DEPTH) m.make("p", box, lines.slice(i).join("\n")).className = "plain", (i = lines.length);
      else if (FENCE.test(s)) i = put_fence(m, box, lines, i);
      else if (HEADING.test(s)) put_heading(m, box, s), i++;
      else if (RULE.test(s)) m.make("hr", box), i++;
      else if (QUOTE.test(s)) i = put_quote(m, box, lines, i, depth);
      else if (is_item(s)) i = put_list(m, box, lines, i, depth);
      else if (is_table(lines, i)) i = put_table(m, box, lines, i);
      else i = put_paragraph(m, box, lines, i);
    }
  }

  /* Text as it is, in pieces that a browser lays out one by one. Gives the last one, and where in the text it begins. */
  function put_plain(box, text, i) {
    let piece = null, at = i;
    for (let end; i < text.length; i = end) {
      const cut = text.lastIndexOf("\n", i + PIECE);
      end = text.length - i <= PIECE ? text.length : cut > i ? cut + 1 : i + PIECE;
      piece = document.createElement("div");
      piece.className = "plain";
      piece.textContent = text.slice(i, end).replace(/\n$/, "");
      box.append(piece);
      at = i;
    }
    return [piece, at];
  }

  return class {
    constructor(box) {
      /* start: of what the last block was made from, behind `kept` nodes of earlier ones, which made `made` elements */
      Object.assign(this, { box, start: 0, kept: 0, made: 0, piece: null, plain: false });
    }
    /* text: what was written before, and more. */
    write(text) {
      if (!this.plain) {
        while (this.box.childNodes.length > this.kept) this.box.lastChild.remove();
        this.plain = text.length > BYTES || !this.blocks(text);
      }
      if (!this.plain) return;
      if (this.piece) this.piece.remove();
      [this.piece, this.start] = put_plain(this.box, text, this.start);
    }
    /* false: more than it may make, and nothing was made. */
    blocks(text) {
      const raw = text.slice(this.start).split("\n"), lines = raw.map((s) => s.replace(/\r$/, "").replace(/\t/g, "    "));
      const fresh = document.createDocumentFragment(), m = new Maker(ELEMENTS - this.made), starts = [];
      try {
        put_blocks(m, fresh, lines, 0, starts);
      } catch (e) {
        if (e instanceof Enough) return false;
        throw e;
      }
      this.box.append(fresh);
      if (starts.length < 2) return true;
      const last = starts[starts.length - 1];
      for (let i = 0; i < last.line; i++) this.start += raw[i].length + 1;
      this.kept += last.nodes;
      this.made = ELEMENTS - last.left;
      return true;
    }
  };
})();
