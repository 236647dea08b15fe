// What moves: events that the daemon sends refresh what is marked with id="live", and a
// file that is dropped anywhere is submitted by its form. All pages are read without this.
"use strict";
(() => {
  const live = document.getElementById("live");
  const address = document.body.dataset.events;
  const gauges = new Map();
  const units = {
    load: (v) => Math.round(100 * v) + " %",
    temperature_c: (v) => Math.round(v) + " °C",
    sm_clock_mhz: (v) => Math.round(v) + " MHz",
    memory_used_bytes: (v) => (v / 2 ** 30).toFixed(1) + " GiB",
  };
  const show = () => {
    for (const [device, event] of gauges) {
      for (const row of document.querySelectorAll("tr[data-device]")) {
        if (row.dataset.device !== device || (event.name && row.dataset.name !== event.name)) continue;
        for (const cell of row.querySelectorAll("[data-gauge]")) {
          const value = event[cell.dataset.gauge];
          cell.textContent = typeof value === "number" ? units[cell.dataset.gauge](value) : "–";
        }
      }
    }
  };
  if (live && address && window.EventSource) {
    let due = 0;
    const refresh = () => {
      if (due || !window.htmx) return;
      due = setTimeout(() => {
        due = 0;
        htmx.trigger(live, "refresh");
      }, 250);
    };
    const source = new EventSource(address);
    for (const name of ["run", "round", "certificate", "queue", "gap"]) source.addEventListener(name, refresh);
    source.addEventListener("device", (message) => {
      const event = JSON.parse(message.data);
      gauges.set(event.device, event);
      show();
    });
    document.addEventListener("htmx:afterSwap", show);
    window.addEventListener("pagehide", () => source.close());
  }

  const form = document.getElementById("drop");
  if (!form) return;
  const input = form.querySelector("input[type=file]");
  const over = (event) => {
    if (!event.dataTransfer || !Array.from(event.dataTransfer.types).includes("Files")) return;
    event.preventDefault();
    form.classList.toggle("over", event.type === "dragover");
    if (event.type === "drop" && event.dataTransfer.files.length > 0) {
      input.files = event.dataTransfer.files;
      form.requestSubmit();
    }
  };
  for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, over);
})();
