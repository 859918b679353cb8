"use strict";
// Draws the charts of the report from the JSON in the page, over the still ones that are there.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const view = { axis: "units", seeds: "band", range: "late", hidden: new Set(), at: null };
  const figure = document.getElementById("curves");
  const plot = figure.querySelector("[data-chart=curves]");
  const ratePlot = document.querySelector("[data-chart=rates]");
  const reading = document.getElementById("reading");
  const legend = [...figure.querySelectorAll(".legend button")];
  const titles = { units: data.unit, step: "steps", seconds: "seconds of training", flops: "FLOPs of the model" };
  for (const series of data.series) {
    for (const curve of [series.mean, ...series.runs]) curve.flops = curve.step.map((step) => step * series.flops);
  }

  const shown = () => data.series.filter((_, index) => !view.hidden.has(index));

  // Numbers

  function short(value) {
    for (const [size, letter] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= 0.9995 * size) return Number((value / size).toPrecision(3)) + letter;
    }
    return String(Number(value.toPrecision(3)));
  }

  function lossText(value) {
    if (data.decimals === null) return value.toExponential(2);
    return value.toFixed(data.decimals);
  }

  function ticks(low, high, most) {
    const rough = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
    return found;
  }

  function decades(low, high) {
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first + 1) / 7));
    const found = [];
    for (let power = first; power <= last; power += every) found.push(10 ** power);
    return found;
  }

  function scale(low, high, from, to, log) {
    const f = log ? (v) => Math.log(Math.max(v, 1e-300)) : (v) => v;
    const a = f(low), b = f(high);
    // a diverged run may be far outside; a browser draws no path with numbers without bound
    const at = (v) => Math.max(-1e5, Math.min(1e5, from + ((f(v) - a) / (b - a)) * (to - from)));
    at.back = (pixel) => low + ((pixel - from) / (to - from)) * (high - low); // of linear ones
    return at;
  }

  function valueAt(xs, ys, x) {
    if (!xs.length || x < xs[0] || x > xs[xs.length - 1] * (1 + 1e-9)) return null;
    const after = xs.findIndex((each) => each >= x);
    if (after <= 0) return ys[Math.max(0, after)];
    const share = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
    return ys[after - 1] + share * (ys[after] - ys[after - 1]);
  }

  // Drawing

  const ink = document.createElement("canvas").getContext("2d");
  ink.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
  const cut = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

  function add(parent, tag, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function group(parent, series) {
    const node = add(parent, "g", { class: "series" });
    node.style.setProperty("--light", series.light);
    node.style.setProperty("--dark", series.dark);
    return node;
  }

  const path = (xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${x.toFixed(1)} ${ys[i].toFixed(1)}`).join("");

  function canvas(holder, label, height, right) {
    const width = Math.max(240, holder.clientWidth);
    const box = { width, height, left: 46, right: width - right, top: 10, bottom: height - 40 };
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
    const clip = add(add(svg, "defs", {}), "clipPath", { id: `clip-${holder.dataset.chart}` });
    add(clip, "rect", { x: box.left, y: box.top - 4, width: box.right - box.left + 4, height: box.bottom - box.top + 4 });
    return { svg, box, clip: `url(#clip-${holder.dataset.chart})` };
  }

  function frame(svg, box, x, y, xTicks, yTicks, xTitle, yTitle) {
    for (const [value, text] of yTicks) {
      add(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
      add(svg, "text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, text);
    }
    add(svg, "path", { class: "axis", d: `M${box.left} ${box.bottom}H${box.right}` });
    for (const [value, text] of xTicks) {
      add(svg, "line", { class: "axis", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 });
      const anchor = x(value) > box.width - 14 ? "end" : "middle";
      add(svg, "text", { x: x(value), y: box.bottom + 18, "text-anchor": anchor }, text);
    }
    add(svg, "text", { class: "x-title", x: (box.left + box.right) / 2, y: box.height - 4, "text-anchor": "middle" }, xTitle);
    add(svg, "text", { x: box.left + 4, y: box.top + 2 }, yTitle);
  }

  function lossTicks(low, high, log, most) {
    if (log) return decades(low, high).map((v) => [v, v.toExponential(0).replace("e+", "e")]);
    const found = ticks(low, high, most);
    const exact = (digits) => found.every((v) => Math.abs(v - v.toFixed(digits)) < 1e-9 * high);
    const digits = [0, 1, 2, 3, 4, 5, 6].find(exact) ?? 6;
    return found.map((v) => [v, v.toFixed(digits)]);
  }

  function apart(ends, gap, low, high) {
    const placed = ends.slice().sort((a, b) => a.y - b.y);
    for (let round = 0; round < 60; round++) {
      for (let i = 1; i < placed.length; i++) {
        const short = gap - (placed[i].y - placed[i - 1].y);
        if (short > 0.01) { placed[i].y += short / 2; placed[i - 1].y -= short / 2; }
      }
      for (const end of placed) end.y = Math.min(high, Math.max(low, end.y));
    }
    return placed;
  }

  function yRange() {
    if (view.range === "late") return data.range;
    const all = shown().flatMap((series) => series.mean.loss);
    if (!all.length) return data.range;
    const low = Math.min(data.range.low, ...all), high = Math.max(data.range.high, ...all);
    return { low, high, log: data.range.log };
  }

  function drawCurves() {
    const axis = view.axis, visible = shown();
    const xMax = Math.max(...data.series.map((s) => s.mean[axis].at(-1) ?? 0)) || 1;
    const ended = visible.filter((s) => !s.diverged && s.mean.loss.length);
    const roomy = plot.clientWidth > 560 && ended.length <= 12 && axis !== "seconds";
    const longest = Math.max(0, ...ended.map((s) => ink.measureText(cut(s.name)).width));
    const height = Math.round(Math.min(460, Math.max(280, plot.clientWidth * 0.54)));
    const { svg, box, clip } = canvas(plot, `Validation loss against ${titles[axis]}`, height, roomy ? 12 + longest : 14);
    const range = yRange();
    const x = scale(0, xMax, box.left, box.right, false);
    const y = scale(range.low, range.high, box.bottom, box.top, range.log);
    const xTicks = ticks(0, xMax, (box.right - box.left) / 90).map((v) => [v, short(v)]);
    frame(svg, box, x, y, xTicks, lossTicks(range.low, range.high, range.log, 7), titles[axis], "");
    const area = add(svg, "g", { "clip-path": clip });
    for (const series of visible) drawSeries(group(area, series), series, x, y, axis);
    if (roomy) nameLines(svg, box, y, ended);
    plot.replaceChildren(svg);
    drawn = { svg, box, x, y, xMax };
    showCursor();
  }

  function drawSeries(node, series, x, y, axis) {
    const xs = series.mean[axis].map(x), { low, high, loss } = series.mean;
    if (!xs.length) return;
    if (view.seeds === "lines") {
      for (const run of series.runs) add(node, "path", { class: "seed", d: path(run[axis].map(x), run.loss.map(y)) });
    } else if (series.runs.length > 1) {
      const back = path(xs.slice().reverse(), high.slice().reverse().map(y)).replace("M", "L");
      add(node, "path", { class: "band", d: `${path(xs, low.map(y))}${back}Z` });
    }
    add(node, "path", { class: "line", d: path(xs, loss.map(y)), "stroke-width": series.width, "stroke-dasharray": series.dash.join(" ") });
  }

  function nameLines(svg, box, y, ended) {
    const ends = ended.map((series) => ({ series, y: y(series.mean.loss.at(-1)) }));
    for (const end of apart(ends, 16, box.top + 4, box.bottom + 2)) {
      const strong = end.series.width > 2 ? " strong" : "";
      add(group(svg, end.series), "text", { class: `name${strong}`, x: box.right + 8, y: end.y + 4 }, cut(end.series.name));
    }
  }

  function drawRates() {
    if (!ratePlot) return;
    const height = Math.round(Math.min(360, Math.max(250, ratePlot.clientWidth * 0.42)));
    const { svg, box, clip } = canvas(ratePlot, "Final validation loss against the learning rate", height, 20);
    const all = [...new Set(data.series.flatMap((s) => s.rates.map((point) => point[0])))].sort((a, b) => a - b);
    const [low, high] = data.rateRange;
    const x = scale(all[0] / 1.15, all.at(-1) * 1.15, box.left, box.right, true);
    const y = scale(low, high, box.bottom, box.top, false);
    const xTicks = all.filter((() => { let last = -99; return (v) => x(v) - last >= 48 && (last = x(v), true); })());
    frame(svg, box, x, y, xTicks.map((v) => [v, String(v)]), lossTicks(low, high, false, 6), "learning rate", "");
    for (const series of shown()) drawRateCurve(group(svg, series), series, x, y, box, clip);
    ratePlot.replaceChildren(svg);
  }

  function drawRateCurve(node, series, x, y, box, clip) {
    const ended = series.rates.filter((point) => point[1] !== null);
    const inside = add(node, "g", { "clip-path": clip });
    add(inside, "path", { class: "line", d: path(ended.map((p) => x(p[0])), ended.map((p) => y(p[1]))), "stroke-width": series.width, "stroke-dasharray": series.dash.join(" ") });
    for (const [lr, loss, spread] of ended) {
      if (spread) add(inside, "path", { class: "error", d: `M${x(lr)} ${y(loss - spread)}V${y(loss + spread)}` });
      const dot = add(inside, "circle", { class: "dot", cx: x(lr), cy: y(loss), r: 4 });
      add(dot, "title", {}, `${series.name}, lr ${lr}: ${lossText(loss)}${spread ? ` ± ${lossText(spread)}` : ""}`);
    }
    for (const [lr] of series.rates.filter((point) => point[1] === null)) {
      const cx = x(lr), cy = box.top + 2;
      const cross = add(node, "path", { class: "lost", d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8` });
      add(cross, "title", {}, `${series.name}, lr ${lr}: diverged`);
    }
  }

  // Reading values

  let drawn = null;

  function showCursor() {
    drawn.svg.querySelector(".reader")?.remove();
    const at = view.at === null ? null : Math.min(drawn.xMax, Math.max(0, view.at));
    reading.textContent = at === null ? "Validation loss at the end" : `Validation loss at ${short(at)} ${titles[view.axis]}`;
    const reader = add(drawn.svg, "g", { class: "reader" });
    if (at !== null) add(reader, "line", { class: "cursor", x1: drawn.x(at), x2: drawn.x(at), y1: drawn.box.top, y2: drawn.box.bottom });
    data.series.forEach((series, index) => {
      const value = at === null ? series.final : valueAt(series.mean[view.axis], series.mean.loss, at);
      const text = value === null ? (at === null ? "diverged" : "–") : lossText(value);
      legend[index].querySelector(".value").textContent = text;
      if (at === null || value === null || view.hidden.has(index)) return;
      const cy = drawn.y(value);
      if (cy >= drawn.box.top) add(group(reader, series), "circle", { class: "dot", cx: drawn.x(at), cy, r: 4 });
    });
  }

  function point(event) {
    const pixel = (event.clientX - plot.getBoundingClientRect().left) * (drawn.box.width / plot.clientWidth);
    view.at = drawn.x.back(Math.min(drawn.box.right, Math.max(drawn.box.left, pixel)));
    showCursor();
  }

  function stop() {
    view.at = null;
    showCursor();
  }

  function key(event) {
    if (event.key === "Escape") return stop();
    const step = { ArrowLeft: -0.02, ArrowRight: 0.02, PageDown: -0.1, PageUp: 0.1 }[event.key];
    const end = { Home: 0, End: drawn.xMax }[event.key];
    if (step === undefined && end === undefined) return;
    event.preventDefault();
    const from = view.at ?? (step > 0 ? 0 : drawn.xMax);
    view.at = end ?? Math.min(drawn.xMax, Math.max(0, from + step * drawn.xMax));
    showCursor();
  }

  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", "Chart of the loss; the arrow keys read values");
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && stop());
  plot.addEventListener("keydown", key);
  plot.addEventListener("blur", stop);

  // Buttons

  for (const part of ["axis", "seeds", "range"]) {
    const buttons = [...figure.querySelectorAll(`[data-${part}]`)];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        view[part] = button.dataset[part];
        view.at = null;
        for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
        drawCurves();
      });
    }
  }
  legend.forEach((button, index) => {
    button.disabled = false;
    button.addEventListener("click", () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
      drawCurves();
      drawRates();
    });
  });

  figure.querySelector(".controls").hidden = false;
  const choice = (part) => figure.querySelector(`[data-${part}]`).parentElement;
  choice("seeds").hidden = !data.series.some((series) => series.runs.length > 1);
  choice("range").hidden = data.range.log;

  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    drawCurves();
    drawRates();
  }).observe(plot);
  drawCurves();
  drawRates();
})();
