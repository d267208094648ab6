// The read-out of the curves: what each line has at the step under the pointer. The page says all else without it.
"use strict";
const readCharts = (() => {
  const text = (value, format) => {
    if (format === "percent") return (100 * value).toFixed(1) + "\u202f%";
    const size = Math.abs(value);
    if (size >= 1000 && size < 1e7) return Math.round(value).toLocaleString("en-US");
    return String(Number(value.toPrecision(4)));
  };

  // The index of the point nearest to x; of those that a rolled back run has twice, the later one.
  const nearest = (xs, x) => {
    let best = 0;
    for (let i = 1; i < xs.length; ++i) if (Math.abs(xs[i] - x) <= Math.abs(xs[best] - x)) best = i;
    return best;
  };

  const element = (name, kind, content) => {
    const made = document.createElement(name);
    if (kind) made.className = kind;
    if (content !== undefined) made.textContent = content;
    return made;
  };

  return (root) => {
    for (const chart of root.querySelectorAll(".chart")) {
      const area = chart.querySelector(".area");
      const data = JSON.parse(chart.querySelector("script").textContent);
      const hair = element("div", "hair"), read = element("div", "read");
      let shown = false;

      const hide = () => {
        if (!shown) return;
        shown = false;
        hair.remove();
        read.remove();
      };

      const show = (event) => {
        const box = area.getBoundingClientRect();
        const x = data.from + (data.to - data.from) * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
        // All lines are read at the point, of any of them, that is nearest.
        let at = null;
        for (const line of data.lines) {
          const i = nearest(line.x, x);
          if (line.y[i] !== null && (at === null || Math.abs(line.x[i] - x) < Math.abs(at - x))) at = line.x[i];
        }
        if (at === null) return hide();
        const stage = data.stages.find(([, begin, end]) => at >= begin && at <= end) || ["", 0, 0];
        read.replaceChildren(element("p", "", `${data.stages.length > 1 ? stage[0] + " " : ""}step ${text(at - stage[1])}`));
        for (const line of data.lines) {
          const i = nearest(line.x, at);
          if (line.y[i] === null || Math.abs(line.x[i] - at) > (data.to - data.from) / 50) continue;
          const row = element("div");
          row.append(element("span", line.colour, line.name), element("b", "", text(line.y[i], data.format)));
          read.append(row);
        }
        if (!shown) area.append(hair, read);
        shown = true;
        const left = (at - data.from) / (data.to - data.from);
        hair.style.left = `${100 * left}%`;
        read.style.left = left < 0.5 ? `calc(${100 * left}% + .6rem)` : "auto";
        read.style.right = left < 0.5 ? "auto" : `calc(${100 * (1 - left)}% + .6rem)`;
      };

      area.addEventListener("pointermove", show);
      area.addEventListener("pointerdown", show);
      area.addEventListener("pointerleave", hide);
    }
  };
})();
readCharts(document);
