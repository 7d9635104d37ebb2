"use strict";
(() => {
  const COLORS = ["#2f6fb3", "#d9822b", "#2a9d74", "#c0497b", "#8a6fd1", "#b0a12c", "#52b3d9", "#8c6d55", "#e0685c", "#6f9443"];
  const RAMP = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
  const OTHER = "#8b919a", MISSING = 65535, MOST_LISTED = 200;
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== "") element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // Tables: a button in each heading sorts, a field above long ones searches.
  const number = text => {
    const plain = text.replace(/,/g, "").replace(/ %$/, "");
    return plain !== "" && isFinite(plain) ? Number(plain) : null;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const rows = [...table.rows].slice(1), heads = [...table.rows[0].cells];
    if (rows.length < 2) continue;
    heads.forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = row => (row.cells[column] ? row.cells[column].textContent.trim() : "");
        const order = (a, b) => {
          const x = number(key(a)), y = number(key(b));
          if (x !== null && y !== null) return x - y;
          return (x === null) - (y === null) || key(a).localeCompare(key(b), "en", { numeric: true });
        };
        rows.sort((a, b) => (down ? -order(a, b) : order(a, b)));
        rows[0].parentNode.append(...rows);
      });
    });
    if (rows.length > 10) {
      const field = make("input", "", { type: "search", placeholder: "Search", "aria-label": "Search the table" });
      const said = make("span", `${rows.length} rows`, { role: "status" });
      field.addEventListener("input", () => {
        const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
        let shown = 0;
        for (const row of rows) {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every(word => text.includes(word));
          shown += !row.hidden;
        }
        said.textContent = `${shown} of ${rows.length} rows`;
      });
      const bar = make("div", "", { class: "search" });
      bar.append(field, said);
      table.parentNode.prepend(bar);
    }
  }

  // Samples: two linked scatter plots.
  const source = document.getElementById("explorer-data");
  if (!source) return;
  const data = JSON.parse(source.textContent), n = data.samples.length;
  const whole = text => {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    return new Uint16Array(bytes.buffer);
  };
  const decoded = new Map();
  const values = item => {
    if (!decoded.has(item)) {
      decoded.set(item, Float32Array.from(whole(item.data), v => (v === MISSING ? NaN : item.low + item.step * v)));
    }
    return decoded.get(item);
  };
  const codes = item => {
    if (!decoded.has(item)) decoded.set(item, whole(item.data));
    return decoded.get(item);
  };
  const shown = x => (Number.isNaN(x) ? "missing" : Number(x.toPrecision(4)).toString());
  const root = document.getElementById("explorer"), status = document.getElementById("explorer-status");
  const legend = document.getElementById("explorer-legend"), listed = document.getElementById("explorer-selected");
  const choose = document.getElementById("explorer-color"), find = document.getElementById("explorer-find");
  root.hidden = false;

  const colorings = [...data.columns, ...data.features];
  choose.append(make("option", "nothing", { value: "" }));
  for (const [label, items] of [["Sample metadata", data.columns], ["Features", data.features]]) {
    if (!items.length) continue;
    const group = make("optgroup", "", { label });
    for (const item of items) group.append(make("option", item.name, { value: colorings.indexOf(item) }));
    choose.append(group);
  }
  const start = colorings.findIndex(item => item.name === data.color);
  choose.value = start < 0 ? "" : String(start);
  const coloring = () => (choose.value === "" ? null : colorings[choose.value]);

  let printing = false;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const ramp = t => {  // its dark end would not be seen on dark ground
    const from = dark.matches && !printing ? 0.25 : 0, part = from + (1 - from) * Math.min(Math.max(t, 0), 1);
    const at = part * (RAMP.length - 1), i = Math.min(Math.floor(at), RAMP.length - 2);
    return `rgb(${RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (at - i))).join(",")})`;
  };
  let color = () => COLORS[0];
  let valueOf = () => "";
  const recolor = () => {
    const item = coloring();
    legend.replaceChildren();
    legend.dataset.column = item ? `${item.name}: ` : "";  // printed, where the choice is not
    if (!item) {
      color = () => COLORS[0];
      valueOf = () => "";
    } else if (item.levels) {
      const code = codes(item);
      color = i => COLORS[code[i]] || OTHER;
      valueOf = i => item.levels[code[i]];
      item.levels.slice(0, COLORS.length).forEach((level, k) => {
        const entry = make("span", "", { class: "key" });
        entry.append(make("i", "", { style: `background:${COLORS[k]}` }), level);
        legend.append(entry);
      });
      if (item.levels.length > COLORS.length) {
        const entry = make("span", "", { class: "key" });
        entry.append(make("i", "", { style: `background:${OTHER}` }), `${item.levels.length - COLORS.length} others`);
        legend.append(entry);
      }
    } else {
      const x = values(item), seen = Float32Array.from(x.filter(v => !Number.isNaN(v))).sort();
      const low = seen[Math.floor(0.01 * seen.length)] ?? 0, high = seen[Math.ceil(0.99 * seen.length) - 1] ?? 1;
      color = i => (Number.isNaN(x[i]) ? OTHER : ramp((x[i] - low) / (high - low || 1)));
      valueOf = i => shown(x[i]);
      const stops = [0, 0.2, 0.4, 0.6, 0.8, 1].map(ramp).join(",");
      legend.append(make("span", shown(low)), make("i", "", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), make("span", shown(high)));
    }
  };

  const selected = new Set();
  let pointed = -1;
  const panels = [...root.querySelectorAll("figure")].map((figure, number) => {
    const [x, y] = figure.querySelectorAll("select"), canvas = figure.querySelector("canvas");
    for (const select of [x, y]) data.factors.forEach((f, k) => select.append(make("option", f.name, { value: k })));
    const last = data.factors.length - 1;
    x.value = Math.min(2 * number, Math.max(0, last - 1));
    y.value = Math.min(2 * number + 1, last);
    return { figure, canvas, x, y, drag: null, px: new Float32Array(n), py: new Float32Array(n) };
  });
  const factor = select => data.factors[select.value];

  const ticks = (low, high) => {
    const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough), found = [];
    for (let v = Math.ceil(low / step) * step; v <= high + 1e-9 * step; v += step) found.push(Number(v.toPrecision(6)));
    return found;
  };
  const extent = item => {
    const low = item.low, high = item.low + item.step * (MISSING - 1), room = 0.04 * (high - low || 1);
    return [low - room, high + room];
  };
  const draw = panel => {
    const { canvas } = panel, style = getComputedStyle(document.documentElement);
    const ink = printing ? "#23272e" : style.getPropertyValue("--ink"), muted = printing ? "#646a73" : style.getPropertyValue("--muted");
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const c = canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = "11px system-ui, sans-serif";
    const left = 44, bottom = 24, top = 6, right = 6;
    const fx = factor(panel.x), fy = factor(panel.y), x = values(fx), y = values(fy);
    const [x0, x1] = extent(fx), [y0, y1] = extent(fy);
    const X = v => left + ((v - x0) / (x1 - x0)) * (width - left - right);
    const Y = v => height - bottom - ((v - y0) / (y1 - y0)) * (height - bottom - top);
    c.strokeStyle = c.fillStyle = muted;
    c.lineWidth = 0.8;
    c.beginPath();
    c.moveTo(left, top);
    c.lineTo(left, height - bottom);
    c.lineTo(width - right, height - bottom);
    c.stroke();
    c.textAlign = "center";
    for (const t of ticks(x0, x1)) c.fillText(String(t), X(t), height - 8);
    c.textAlign = "right";
    for (const t of ticks(y0, y1)) c.fillText(String(t), left - 5, Y(t) + 4);
    c.fillText(fx.name, width - right, height - bottom - 5);
    c.textAlign = "left";
    c.fillText(fy.name, left + 5, top + 9);
    const size = n > 3000 ? 1.6 : n > 600 ? 2.2 : 3;
    for (let i = 0; i < n; i++) {
      panel.px[i] = X(x[i]);
      panel.py[i] = Y(y[i]);
      c.globalAlpha = selected.size && !selected.has(i) ? 0.12 : 0.8;
      c.fillStyle = color(i);
      c.fillRect(panel.px[i] - size, panel.py[i] - size, 2 * size, 2 * size);
    }
    c.globalAlpha = 1;
    if (pointed >= 0) {
      c.strokeStyle = ink;
      c.lineWidth = 1.5;
      c.beginPath();
      c.arc(panel.px[pointed], panel.py[pointed], 7, 0, 7);
      c.stroke();
    }
    if (panel.drag) {
      const [ax, ay, bx, by] = panel.drag;
      c.strokeStyle = ink;
      c.setLineDash([4, 3]);
      c.strokeRect(ax, ay, bx - ax, by - ay);
    }
    const item = coloring();
    canvas.setAttribute("aria-label", `Scatter plot of ${n} samples: ${fx.name} across, ${fy.name} up` +
      `${item ? `, coloured by ${item.name}` : ""}. Arrow keys go from sample to sample.`);
  };
  const redraw = () => panels.forEach(draw);

  const tell = () => {
    if (pointed < 0) {
      const some = n < data.n_samples ? ` of ${data.n_samples.toLocaleString("en")}, evenly spaced` : "";
      status.textContent = `${n.toLocaleString("en")} samples${some}. Point at one for its name; click it, or drag over several, to select.`;
      return;
    }
    const item = coloring(), parts = [data.samples[pointed]];
    for (const f of new Set(panels.flatMap(p => [factor(p.x), factor(p.y)]))) parts.push(`${f.name} ${shown(values(f)[pointed])}`);
    if (item) parts.push(`${item.name} ${valueOf(pointed)}`);
    status.textContent = parts.join(" · ");
  };
  const point = i => {
    if (i === pointed) return;
    pointed = i;
    tell();
    redraw();
  };
  const list = () => {
    listed.replaceChildren();
    if (!selected.size) return;
    const factors = [...new Set(panels.flatMap(p => [factor(p.x), factor(p.y)]))], item = coloring();
    const names = ["sample", ...factors.map(f => f.name), ...(item ? [item.name] : [])];
    const row = i => [data.samples[i], ...factors.map(f => shown(values(f)[i])), ...(item ? [valueOf(i)] : [])];
    const rows = [...selected].sort((a, b) => a - b);
    const quoted = cell => (/[",\n]/.test(cell) ? `"${cell.replace(/"/g, '""')}"` : cell);
    const head = make("p", `${rows.length} sample${rows.length === 1 ? "" : "s"} selected. `);
    const save = make("button", "Save as CSV", { type: "button" });
    save.addEventListener("click", () => {
      const text = [names, ...rows.map(row)].map(cells => cells.map(quoted).join(",")).join("\n");
      const link = make("a", "", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: "samples.csv" });
      link.click();
    });
    const clear = make("button", "Clear", { type: "button" });
    clear.addEventListener("click", () => select([]));
    head.append(save, " ", clear);
    const table = make("table", "");
    const line = (cells, tag) => {
      const tr = make("tr", "");
      cells.forEach(cell => tr.append(make(tag, String(cell))));
      return tr;
    };
    table.append(line(names, "th"), ...rows.slice(0, MOST_LISTED).map(i => line(row(i), "td")));
    const scroll = make("div", "", { class: "scroll" });
    scroll.append(table);
    listed.append(head, scroll);
    if (rows.length > MOST_LISTED) listed.append(make("p", `The first ${MOST_LISTED} are listed; the file has all.`, { class: "note" }));
  };
  const select = chosen => {
    selected.clear();
    chosen.forEach(i => selected.add(i));
    list();
    redraw();
  };

  const place = (panel, event) => {
    const box = panel.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const nearest = (panel, x, y) => {
    let best = -1, least = 144;
    for (let i = 0; i < n; i++) {
      const d = (panel.px[i] - x) ** 2 + (panel.py[i] - y) ** 2;
      if (d < least) { least = d; best = i; }
    }
    return best;
  };
  for (const panel of panels) {
    const { canvas } = panel;
    canvas.addEventListener("pointermove", event => {
      const [x, y] = place(panel, event);
      if (panel.drag) {
        panel.drag[2] = x;
        panel.drag[3] = y;
        draw(panel);
      } else point(nearest(panel, x, y));
    });
    canvas.addEventListener("pointerleave", event => { if (!panel.drag && event.pointerType !== "touch") point(-1); });
    canvas.addEventListener("pointerdown", event => {
      const [x, y] = place(panel, event);
      if (event.pointerType === "touch") return;  // a finger that moves scrolls the page; a tap ends in pointerup
      panel.drag = [x, y, x, y];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", event => {
      const [bx, by] = place(panel, event), [ax, ay] = panel.drag || [bx, by], inside = [];
      panel.drag = null;
      if (Math.abs(bx - ax) > 3 || Math.abs(by - ay) > 3) {
        for (let i = 0; i < n; i++) {
          const x = panel.px[i], y = panel.py[i];
          if (x >= Math.min(ax, bx) && x <= Math.max(ax, bx) && y >= Math.min(ay, by) && y <= Math.max(ay, by)) inside.push(i);
        }
      } else {
        point(nearest(panel, bx, by));
        if (pointed >= 0) inside.push(pointed);
      }
      select(inside);
    });
    canvas.addEventListener("keydown", event => {
      const along = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowDown: ["y", -1], ArrowUp: ["y", 1] }[event.key];
      if (along) {
        const v = values(factor(panel[along[0]])), order = [...v.keys()].sort((a, b) => v[a] - v[b]);
        const at = pointed < 0 ? (along[1] > 0 ? -1 : n) : order.indexOf(pointed);
        point(order[Math.min(Math.max(at + along[1], 0), n - 1)]);
      } else if (event.key === "Enter" && pointed >= 0) {
        select(selected.has(pointed) ? [...selected].filter(i => i !== pointed) : [...selected, pointed]);
      } else if (event.key === "Escape") {
        point(-1);
        select([]);
      } else return;
      event.preventDefault();
    });
    for (const chosen of [panel.x, panel.y]) chosen.addEventListener("change", () => { tell(); list(); draw(panel); });
  }
  choose.addEventListener("change", () => { recolor(); tell(); list(); redraw(); });
  find.addEventListener("input", () => {
    const text = find.value.trim().toLowerCase();
    const chosen = text ? [...data.samples.keys()].filter(i => data.samples[i].toLowerCase().includes(text)) : [];
    point(chosen.length === 1 ? chosen[0] : -1);
    select(chosen);
  });
  window.addEventListener("beforeprint", () => { printing = true; redraw(); });
  window.addEventListener("afterprint", () => { printing = false; redraw(); });
  dark.addEventListener("change", () => { recolor(); redraw(); });
  new ResizeObserver(redraw).observe(root);
  recolor();
  tell();
  redraw();
})();
