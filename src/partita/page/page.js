"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("timelines");
  document.documentElement.dataset.ready = "no";
  const tip = document.getElementById("tip");
  const NS = "http://www.w3.org/2000/svg";
  const figures = (x) => x === 0 ? "0" : Math.abs(x) >= 99.95 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : Math.abs(x) >= 0.9995 ? x.toFixed(2) : Number(x.toPrecision(3)).toString();
  const ms = (x) => figures(x) + " ms";
  const signed = (x) => (x < 0 ? "−" : "+") + Math.abs(100 * x).toFixed(Math.abs(x) < 0.0995 ? 1 : 0) + " %";
  const escape = (s) => String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

  // ---- what the pointer is over: the same instruction lights up wherever it is drawn

  const words = (label) => {
    const one = /^([FBU])(\d+)$/.exec(label), two = /^([FB])(\d+)>[FB](\d+)$/.exec(label);
    if (one) return { F: "forward", B: "backward", U: "update" }[one[1]] + " of stage " + one[2];
    if (two) return (two[1] === "F" ? "activations" : "gradients") + ", stage " + two[2] + " to " + two[3];
    return label;
  };
  const noted = ([heading, rows]) => `<b>${escape(heading)}</b><table>${rows.map(([k, v]) => `<tr><td>${escape(k)}</td><td>${escape(v)}</td></tr>`).join("")}</table>`;
  const describe = (i) => {
    if (data.tips) return noted(data.tips[i]);
    const [label, micro, queue, ...times] = data.rows[i];
    const rows = data.panels.map((p, k) => times[2 * k + 1] == null ? "" :
      `<tr><td>${p.name.toLowerCase()}</td><td><b>${ms(times[2 * k + 1])}</b></td><td>from ${ms(times[2 * k])}</td></tr>`);
    const off = times.length === 4 && times[1] != null && times[3] > 0 ? `<tr><td>error</td><td>${signed(times[1] / times[3] - 1)}</td><td></td></tr>` : "";
    const about = micro >= 0 ? `, micro-batch ${micro}` : "";
    return `<b>${escape(words(data.labels[label]))}</b>${about} · ${escape(data.queues[queue])}<table>${rows.join("")}${off}</table>`;
  };
  const light = (i) => {
    document.querySelectorAll(".on").forEach((e) => e.classList.remove("on"));
    const found = i == null ? [] : document.querySelectorAll(`[data-i="${i}"]`);
    found.forEach((e) => e.classList.add("on"));
    document.querySelectorAll(".spans").forEach((e) => e.classList.toggle("over-one", found.length > 0));
  };
  const hide = () => { tip.hidden = true; light(null); };
  const show = (i, x, y) => {
    if (tip.hidden || tip.dataset.of !== i) { tip.innerHTML = describe(i); tip.dataset.of = i; tip.hidden = false; light(i); }
    const box = tip.getBoundingClientRect();
    const left = Math.min(x + 16, innerWidth - box.width - 8), top = y + 18 + box.height > innerHeight ? y - box.height - 14 : y + 18;
    tip.style.transform = `translate(${Math.max(8, left)}px,${Math.max(8, top)}px)`;
  };
  document.addEventListener("pointermove", (e) => {
    const i = e.target.dataset && e.target.dataset.i;
    if (i != null && (data.rows || data.tips) && !brush) show(i, e.clientX, e.clientY); else if (!tip.hidden) hide();
  });
  document.addEventListener("pointerleave", hide);

  // ---- the timelines: ticks and numbers for what is in view; zooming moves the view box

  let brush = null;
  if (root) {
    const plot = root.querySelector(".plot"), spans = plot.querySelector(".spans"), over = plot.querySelector(".over");
    const boxes = [...spans.querySelectorAll("rect[data-i]")].filter((r) => r.height.baseVal.value >= 14 && !r.classList.contains("handling")).map((r) => ({
      x: r.x.baseVal.value, w: r.width.baseVal.value, y: r.y.baseVal.value + r.height.baseVal.value / 2 + 4, look: r.classList[0], i: r.dataset.i,
    }));
    const typical = boxes.map((b) => b.w).sort((a, b) => a - b)[boxes.length >> 1] || 0;
    const view = { from: 0, to: data.span };
    const add = (name, attributes, text) => {
      const e = document.createElementNS(NS, name);
      for (const k in attributes) e.setAttribute(k, attributes[k]);
      if (text != null) e.textContent = text;
      return e;
    };
    const nice = (span, most) => {
      const power = 10 ** Math.floor(Math.log10(span / most));
      return [1, 2, 5, 10].map((m) => m * power).find((s) => span / s <= most) || 10 * power;
    };
    const draw = () => {
      const span = view.to - view.from, wide = plot.clientWidth || 1000, parts = [];
      const at = (t) => (100 * (t - view.from) / span).toFixed(4) + "%";
      const inside = (t) => t >= view.from - 1e-9 && t <= view.to + 1e-9;
      spans.setAttribute("viewBox", `${view.from} 0 ${span} ${data.height}`);
      const step = nice(span, Math.max(2, Math.floor(wide / 110)));
      const bottom = data.panels[data.panels.length - 1].bottom;
      for (let k = Math.ceil(view.from / step - 1e-9); k * step <= view.to; k++) {
        const x = at(k * step), last = k * step > view.to - span * 0.03;
        for (const p of data.panels) parts.push(add("line", { class: "grid", x1: x, x2: x, y1: p.top + 28, y2: p.bottom + 4 }));
        parts.push(add("text", { class: "axis", x, y: bottom + 22, "text-anchor": k === 0 ? "start" : last ? "end" : "middle" }, +(k * step).toPrecision(8) + (k * step + step > view.to ? " ms" : "")));
      }
      for (const p of data.panels) if (inside(p.end)) {
        const x = at(p.end);
        parts.push(add("line", { class: "end", x1: x, x2: x, y1: p.top + 26, y2: p.bottom + 3 }));
        parts.push(add("text", { class: "endlabel", x, y: p.top + 19 }, ms(p.end)));
      }
      const perMs = wide / span;
      spans.classList.toggle("tight", typical * perMs < 4);  // the gaps would hide the boxes
      for (const b of boxes) {
        const micro = data.rows[b.i][1], text = micro >= 0 ? String(micro) : "";
        if (!text || b.x + b.w < view.from || b.x > view.to || b.w * perMs < 6.2 * text.length + 4) continue;
        const from = Math.max(b.x, view.from), to = Math.min(b.x + b.w, view.to);
        if ((to - from) * perMs < 6.2 * text.length + 3) continue;
        parts.push(add("text", { class: "number " + b.look, x: at((from + to) / 2), y: b.y }, text));
      }
      if (brush) {
        const a = Math.min(brush.from, brush.to), b = Math.max(brush.from, brush.to);
        parts.push(add("rect", { class: "brush", x: at(a), width: (100 * (b - a) / span) + "%", y: 26, height: bottom - 22 }));
      }
      over.replaceChildren(...parts);
    };
    let waiting = false;
    const soon = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
    const look = (from, to) => {
      const span = Math.min(Math.max(to - from, data.span / 5000), data.span);
      view.from = Math.min(Math.max(from, 0), data.span - span);
      view.to = view.from + span;
      soon();
    };
    const zoom = (factor, around) => look(around - (around - view.from) * factor, around + (view.to - around) * factor);
    const pan = (share) => { const d = share * (view.to - view.from); const from = Math.min(Math.max(view.from + d, 0), data.span - (view.to - view.from)); look(from, from + view.to - view.from); };
    const time = (e) => { const box = plot.getBoundingClientRect(); return view.from + (e.clientX - box.left) / box.width * (view.to - view.from); };

    plot.addEventListener("wheel", (e) => {
      const active = document.activeElement === plot;
      if (!active && !e.ctrlKey && !e.metaKey && Math.abs(e.deltaX) <= Math.abs(e.deltaY)) return;  // the page scrolls
      e.preventDefault();
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) pan((e.deltaX || e.deltaY) / plot.clientWidth);
      else zoom(Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * 0.004), time(e));
    }, { passive: false });
    plot.addEventListener("pointerdown", (e) => {
      if (e.button !== 0 || e.pointerType === "touch") return;
      brush = { from: time(e), to: time(e), x: e.clientX };
      plot.setPointerCapture(e.pointerId);
      hide();
    });
    plot.addEventListener("pointermove", (e) => { if (brush) { brush.to = time(e); soon(); } });
    const release = (e) => {
      if (!brush) return;
      const { from, to, x } = brush;
      brush = null;
      if (e.type === "pointerup" && Math.abs(e.clientX - x) > 4) look(Math.min(from, to), Math.max(from, to)); else soon();
    };
    plot.addEventListener("pointerup", release);
    plot.addEventListener("pointercancel", release);
    plot.addEventListener("dblclick", () => look(0, data.span));
    plot.addEventListener("keydown", (e) => {
      const middle = (view.from + view.to) / 2;
      const act = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1 / 0.7, middle), Escape: () => { look(0, data.span); plot.blur(); }, 0: () => look(0, data.span) }[e.key];
      if (act) { e.preventDefault(); act(); }
    });
    new ResizeObserver(soon).observe(plot);
    draw();
  }
  document.documentElement.dataset.ready = "yes";
})();
