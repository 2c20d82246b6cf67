"use strict";
// Draws the report embedded in the page. Every number shown is from the report.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  const main = document.getElementById("main");
  let unique = 0;

  // Creates an element: attributes with the prefix "on" are listeners; children are elements or text.
  function make(name, attributes, ...children) {
    const svg = ["svg", "g", "path", "polyline", "line", "rect", "text", "title", "circle"].includes(name);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== false && value != null) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child != null));
    return element;
  }
  const grouped = (text) => text.replace(/^-?\d{5,}/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));
  function show(value) {
    if (value === null) return "\u2013";
    if (value === true) return "yes";
    if (value === false) return "no";
    return typeof value === "number" ? grouped(String(value)) : value;
  }
  const colour = (i) => `var(--c${i % 12})`;
  // Fill of areas: after the twelfth, stripes distinguish them.
  const fill = (i) => (i < 12 ? colour(i) : `repeating-linear-gradient(45deg,${colour(i)} 0 4px,var(--ink) 4px 6px)`);
  const dashes = ["", "7 4", "2 3", "9 3 2 3", "", "7 4", "2 3", "9 3 2 3"];
  // Converts text with `code` to elements.
  const words = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));
  const titled = (block, unit) => (unit ? `${block.title}, ${unit}` : block.title);
  const box = (title, ...children) => make("section", { class: "box" }, title ? make("h3", {}, title) : null, ...children);

  const blocks = {
    prose: (block) => make("p", {}, words(block.text)),
    table: (block) => box(block.title, table(block)),
    chart, bars, ladder, bytes, timeline, steps,
  };

  function table(block) {
    const isNumber = block.columns.map((_, i) => block.rows.every((row) => row[i] === null || typeof row[i] === "number"));
    const cell = (name) => (value, i) => make(name, { class: isNumber[i] ? "n" : null, scope: name === "th" ? "col" : null }, show(value));
    const rows = block.rows.map((row, i) =>
      make("tr", { class: block.sum && i === block.rows.length - 1 ? "sum" : null }, row.map(cell("td"))));
    return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title },
      make("table", {}, make("thead", {}, make("tr", {}, block.columns.map(cell("th")))), make("tbody", {}, rows)));
  }

  // Returns round numbers for the ends of an axis.
  function ticks(most) {
    if (!(most > 0)) return [0, 1];
    const rough = most / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
    const all = [];
    for (let i = 0; i * step < most + step * 0.999; i++) all.push(Number((i * step).toPrecision(6)));
    return all;
  }

  function chart(block) {
    const hidden = new Set();
    const ends = block.series.flatMap((s) => s.points.map((p) => p[0]));
    const end = Math.max(...ends, 1e-9);
    const holder = make("div", {});
    const slider = make("input", { type: "range", min: 0, max: 1000, value: 1000, "aria-label": `${block.x.name} at which values are read`, oninput: draw });
    const where = make("output", {});
    const readings = block.series.map(() => make("output", {}));
    const legend = make("div", { class: "legend" }, block.series.map((series, i) =>
      make("label", {}, make("input", { type: "checkbox", checked: true, onchange: (event) => {
        event.target.checked ? hidden.delete(i) : hidden.add(i); draw(); } }),
        make("span", { class: "swatch", style: `background:${colour(i)}` }), series.name, readings[i])));
    const at = (points, x) => {
      let low = 0, high = points.length;
      while (low < high) { const mid = (low + high) >> 1; if (points[mid][0] <= x) low = mid + 1; else high = mid; }
      return points[Math.max(0, low - 1)];
    };
    function draw() {
      const width = Math.max(280, holder.clientWidth || 600), height = Math.max(200, Math.min(340, width * 0.5));
      const seen = block.series.filter((_, i) => !hidden.has(i));
      const most = Math.max(...seen.flatMap((s) => s.points.map((p) => p[1])), ...block.levels?.map((l) => l.value) || [], 0);
      const ys = ticks(most);
      // Width of the longest number.
      const left = 14 + 7 * Math.max(...ys.map((v) => show(v).length)), [right, top, bottom] = [12, 10, 34];
      const xs = ticks(end).filter((x) => x <= end * 1.0001);
      const x = (v) => left + (v / end) * (width - left - right);
      const y = (v) => top + (1 - v / ys[ys.length - 1]) * (height - top - bottom);
      const cursor = (slider.value / 1000) * end;
      const sparse = width < 420 ? 2 : 1;
      const picture = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": titled(block, block.y.unit) },
        ys.map((v) => [make("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }),
          make("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, show(v))]).flat(),
        xs.filter((_, i) => i % sparse === 0).map((v) => make("text", { x: x(v), y: height - 18, "text-anchor": v === 0 ? "start" : x(v) > width - 50 ? "end" : "middle" }, show(v))),
        make("text", { x: width - right, y: height - 3, "text-anchor": "end" }, `${block.x.name}, ${block.x.unit}`),
        (block.levels || []).map((l) => [make("line", { class: "level", x1: left, x2: width - right, y1: y(l.value), y2: y(l.value) }),
          make("text", { x: width - right - 4, y: y(l.value) < 24 ? y(l.value) + 14 : y(l.value) - 4, "text-anchor": "end" }, `${l.name} ${show(l.value)}`)]).flat(),
        block.series.map((series, i) => hidden.has(i) ? null : make("polyline", { class: "series", stroke: colour(i), "stroke-dasharray": dashes[i % 8] || null,
          points: series.points.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") })),
        make("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: top, y2: height - bottom }));
      holder.replaceChildren(picture);
      block.series.forEach((series, i) => {
        const point = series.points.length ? at(series.points, cursor) : null;
        readings[i].textContent = point ? show(point[1]) : "";
      });
      where.textContent = `${show(Number(cursor.toPrecision(3)))} ${block.x.unit}`;
    }
    watch(holder, draw);
    return box(titled(block, block.y.unit), make("figure", {}, legend, holder, make("div", { class: "at" }, `${block.x.name}: `, slider, where)));
  }

  function watch(element, draw) {
    let width = -1;
    // Deferred: drawing inside the observer's callback would change sizes while they are reported.
    const look = () => { if (element.clientWidth !== width) { width = element.clientWidth; draw(); } };
    new ResizeObserver(() => requestAnimationFrame(look)).observe(element);
  }

  function bars(block) {
    const names = [...new Set(block.bars.flatMap((bar) => bar.parts.map((part) => part.name)))];
    const sum = (bar) => Number(bar.parts.reduce((all, part) => all + part.value, 0).toPrecision(6));
    const most = Math.max(...block.bars.map(sum), 1e-9);
    const legend = make("div", { class: "legend" }, names.map((name, i) =>
      make("span", {}, make("span", { class: "swatch", style: `background:${fill(i)}` }), ` ${name}`)));
    const rows = block.bars.map((bar) => [
      make("div", {}, bar.name, make("div", { class: "total" }, `${show(sum(bar))} ${block.unit}`)),
      make("div", { class: "bar", "aria-hidden": "true" }, bar.parts.map((part) => make("span", {
        style: `width:${(100 * part.value) / most}%;background:${fill(names.indexOf(part.name))}`, title: `${part.name}: ${show(part.value)} ${block.unit}` })))]);
    const columns = ["", ...names];
    const cells = block.bars.map((bar) => [bar.name, ...names.map((name) => bar.parts.find((part) => part.name === name)?.value ?? null)]);
    return box(`${block.title}, ${block.unit}`, legend, make("div", { class: "bars" }, rows.flat()),
      make("details", {}, make("summary", {}, "as a table"), table({ title: block.title, columns, rows: cells })));
  }

  function ladder(block, picture) {
    const line = (step) => {
      if (step.step === "silence") return make("li", { class: "soft" }, `${show(step.ns / 1000)} us of silence`);
      if (step.step === "missing") return make("li", { class: "soft" }, `${step.label}: ${step.remark}`);
      const time = step.at === null ? "" : ` at ${show(step.at / 1000)} us`;
      const lost = step.end === "lost" ? " lost" : "";
      return make("li", { class: `${step.right ? "right" : "left"} ${step.line}${lost}` },
        make("span", { class: "mono" }, step.label), make("span", { class: "soft" }, `${time}${step.remark ? ": " + step.remark : ""}`));
    };
    const list = make("details", { open: window.innerWidth < 1000 }, make("summary", {}, "packet by packet"),
      make("p", { class: "soft" }, `\u2192 from ${block.names[0]}, \u2190 from ${block.names[1]}`), make("ol", { class: "rungs" }, block.steps.map(line)));
    const image = make("div", { class: "scroll picture", tabindex: 0, role: "region", "aria-label": "the ladder as a picture" },
      make("img", { alt: `${block.title}. ${block.summary}`, src: "data:image/svg+xml," + encodeURIComponent(picture) }));
    return box(block.heading, make("p", { class: "soft" }, block.summary), image, list);
  }

  function bytes(block) {
    const count = block.hex.length / 2;
    const spans = Array.from({ length: Math.min(count, 512) }, (_, i) => make("span", { title: `byte ${i}` }, block.hex.slice(2 * i, 2 * i + 2)));
    const rows = [];
    const mark = (field, row) => {
      const from = field.bit >> 3, to = (field.bit + field.bits + 7) >> 3;
      spans.forEach((span, i) => span.classList.toggle("on", i >= from && i < to));
      rows.forEach((other) => other.classList.toggle("on", other === row));
    };
    const place = (field) => field.bit % 8 || field.bits % 8 ? `${field.bit >> 3}.${field.bit % 8}` : `${field.bit >> 3}`;
    const size = (field) => field.bit % 8 || field.bits % 8 ? `${field.bits} bit` : `${field.bits / 8} B`;
    for (const field of block.fields) {
      const row = make("tr", { onmouseenter: () => mark(field, row) },
        make("td", {}, field.header), make("td", { class: "n" }, place(field)), make("td", { class: "n" }, size(field)),
        make("td", {}, make("button", { type: "button", onfocus: () => mark(field, row), onclick: () => mark(field, row) }, field.name)),
        make("td", { class: "mono" }, field.value), make("td", { class: "soft" }, field.about || "", field.uncovered ? " (not covered by the ICRC)" : ""));
      rows.push(row);
    }
    const head = ["header", "byte", "size", "field", "value", "purpose"].map((name) => make("th", { scope: "col" }, name));
    return box(block.title, make("div", { class: "hex mono", "aria-hidden": "true" }, spans, count > 512 ? make("span", {}, `\u2026 ${show(count)} bytes`) : null),
      make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title },
        make("table", { class: "fields" }, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows))));
  }

  function timeline(block) {
    const end = Math.max(...block.spans.map((span) => span.to), 1e-9);
    const rows = block.spans.map((span) => make("tr", {},
      make("td", { class: "n" }, show(span.from)), make("td", { class: "n" }, show(Number((span.to - span.from).toPrecision(6)))),
      make("td", { class: "wide" }, make("strong", {}, span.at), `: ${span.what}`, make("div", { class: "bar", style: "height:.7rem" },
        make("span", { style: `width:${(100 * span.from) / end}%` }),
        make("span", { style: `width:${Math.max(1, (100 * (span.to - span.from)) / end)}%;background:var(--c0)` })))));
    const head = ["from", "for", "stage"].map((name) => make("th", { scope: "col" }, name));
    return box(`${block.title}, ${block.unit}`, make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": block.title },
      make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows))));
  }

  function steps(block) {
    let number = 0;
    const says = make("p", { "aria-live": "polite" }), places = make("div", { class: "places" });
    const slider = make("input", { type: "range", min: 0, max: block.steps.length - 1, value: 0, "aria-label": "step", oninput: () => go(Number(slider.value)) });
    const go = (to) => {
      number = Math.max(0, Math.min(block.steps.length - 1, to));
      const step = block.steps[number];
      slider.value = number;
      says.replaceChildren(make("strong", {}, step.at), ` (${number + 1} of ${block.steps.length}) ${step.says}`);
      places.replaceChildren(...block.places.map((place, i) =>
        make("div", { class: `l${step.states[i][1]}` }, make("strong", {}, place), make("br", {}), step.states[i][0])));
    };
    go(0);
    const button = (name, by) => make("button", { type: "button", onclick: () => go(number + by) }, name);
    return box(block.title, make("div", { class: "at" }, button("back", -1), slider, button("next", 1)), says, places);
  }

  function facts(all) {
    return make("dl", { class: "facts" }, Object.entries(all).map(([name, fact]) =>
      make("div", { title: name }, make("dt", {}, fact.about), make("dd", {}, `${show(fact.value)} ${fact.unit || ""}`))));
  }

  const names = [...new Set(report.runs.flatMap((run) => run.choice.map((choice) => choice.name)))];
  const values = Object.fromEntries(names.map((name) => [name, [...new Set(report.runs.flatMap((run) =>
    run.choice.filter((choice) => choice.name === name).map((choice) => choice.value)))]]));
  // Sorts numbers by value, after words.
  const rank = (value) => (/^[-+]?\d/.test(value) ? parseFloat(value) : -Infinity);
  names.forEach((name) => values[name].some((value) => rank(value) > -Infinity) && values[name].sort((a, b) => rank(a) - rank(b) || 0));
  const chosen = Object.fromEntries(report.runs[0].choice.map((choice) => [choice.name, choice.value]));
  const place = make("div", {});
  const differs = (run) => run.choice.filter((choice) => chosen[choice.name] !== choice.value).length;

  function render() {
    // Without a run of this combination, selects the nearest one.
    const nearest = report.runs.reduce((best, run) => (differs(run) < differs(best) ? run : best));
    const index = report.runs.indexOf(nearest);
    const body = nearest.blocks.map((block, i) => blocks[block.kind](block, pictures[index][i]));
    place.replaceChildren(make("div", {}, facts(nearest.facts)), ...body);
  }

  function control(name) {
    const all = values[name], id = `c${unique++}`;
    if (all.length > 5) {
      const now = make("output", {}, chosen[name]);
      const slider = make("input", { type: "range", id, min: 0, max: all.length - 1, value: all.indexOf(chosen[name]),
        "aria-valuetext": chosen[name], oninput: () => { chosen[name] = all[slider.value]; now.textContent = chosen[name];
          slider.setAttribute("aria-valuetext", chosen[name]); render(); } });
      return make("fieldset", {}, make("legend", {}, make("label", { for: id }, name)), slider, " ", now);
    }
    return make("fieldset", {}, make("legend", {}, name), all.map((value) => make("label", {},
      make("input", { type: "radio", name: id, checked: chosen[name] === value, onchange: () => { chosen[name] = value; render(); } }), ` ${value}`)));
  }

  const list = (lines) => make("ul", {}, lines.map((line) => make("li", {}, words(line))));
  main.append(make("header", {}, make("h1", {}, `${report.name}: ${report.line}`)),
    make("section", { class: "box see" }, make("h3", {}, "What you will see"), list(report.see)));
  const controls = names.filter((name) => values[name].length > 1);
  if (controls.length) main.append(make("form", { class: "box controls", "aria-label": "controls", onsubmit: (event) => event.preventDefault() }, controls.map(control)));
  main.append(place);
  if (report.across) main.append(make("h2", {}, "All runs"), ...report.across.map((block) => blocks[block.kind](block)));
  main.append(make("section", { class: "box see" }, make("h3", {}, "Now change something"), list(report.change)),
    make("footer", { class: "soft" }, "Every number is from a run of the engine: ", make("code", {}, `${report.command} --json`)));
  render();
})();
