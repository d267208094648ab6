// Follows a run: asks what is new every two seconds, and puts a new report in the place of the old one.
(() => {
  const every = 2000; // ms
  const part = (name) => document.getElementById("live-" + name);
  let version = null, stopping = false, armed = null;

  const shown = "header .about, nav, #report";
  const redraw = async () => {
    const answer = await fetch("./", { cache: "no-store" });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const headings = (root) => [...root.querySelectorAll("#report details")];
    const opened = new Set(headings(document).filter((one) => one.open).map((one) => one.querySelector("summary").textContent));
    const fresh = [...next.querySelectorAll(shown)];
    [...document.querySelectorAll(shown)].forEach((old, i) => old.replaceChildren(...fresh[i].childNodes));
    for (const one of headings(document)) if (opened.has(one.querySelector("summary").textContent)) one.open = true;
    document.title = next.title;
    readCharts(document);
  };

  const show = (state) => {
    part("state").textContent = stopping && state.is_running ? "stopping: the checkpoint is being written"
      : state.is_running ? "training" : "not training";
    part("state").className = "state " + (state.is_running ? "going" : "done");
    part("stop").hidden = stopping || !state.can_stop || !state.is_running;
    const log = part("log"), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    if (log.textContent === state.log) return;
    log.textContent = state.log;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };

  const poll = async () => {
    try {
      const answer = await fetch("state", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const state = await answer.json();
      show(state);
      if (version !== null && state.version !== version) await redraw();
      version = state.version;
    } catch {
      part("state").textContent = stopping ? "stopped: the same command goes on from its checkpoint"
        : "no answer: the process that trains has ended, or cannot be reached";
      part("state").className = "state";
      part("stop").hidden = true;
    }
    setTimeout(poll, every);
  };

  // The first click asks, the second one stops.
  part("stop").addEventListener("click", async () => {
    const button = part("stop"), text = button.textContent;
    if (armed === null) {
      armed = setTimeout(() => { armed = null; button.textContent = text; }, 4000);
      button.textContent = "Stop now?";
      return;
    }
    clearTimeout(armed);
    const answer = await fetch("stop", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
    stopping = answer.ok;
    button.textContent = stopping ? text : "It could not be stopped: " + answer.status;
    button.hidden = stopping;
  });

  part("lines").addEventListener("toggle", () => { part("log").scrollTop = part("log").scrollHeight; });
  poll();
})();
