// Pages refresh what they show, and the live tail gets messages. Texts of the cluster are only ever set as text.
"use strict";

function refreshing() {
  const main = document.querySelector("main[data-refresh]");
  if (!main) return;
  const every = Number(main.dataset.refresh) * 1000;
  const again = () => setTimeout(refresh, every);
  async function refresh() {
    const busy = document.activeElement && document.activeElement.matches("input, select, button");
    if (document.hidden || busy || String(getSelection())) return again();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.redirected) return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      const current = document.querySelector("main");
      const left = [...current.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
      current.replaceChildren(...fresh.childNodes);
      [...current.querySelectorAll(".scroll")].forEach((each, i) => { each.scrollLeft = left[i] || 0; });
    } catch (error) {
      console.warn("the page could not be refreshed", error);
    }
    again();
  }
  again();
}

function tailing() {
  const table = document.getElementById("tail");
  if (!table) return;
  const state = document.getElementById("tail-state");
  const text = document.getElementById("tail-text");
  const pause = document.getElementById("tail-pause");
  const rowsMax = 500;
  let paused = false;
  let shown = 0;
  const say = (kind, what) => { state.className = "dot " + kind; text.textContent = what; };
  const events = new EventSource(table.dataset.events);
  events.addEventListener("message", (event) => {
    if (paused || event.data === undefined) return;
    const message = JSON.parse(event.data);
    const row = document.createElement("tr");
    const cells = [["Stored (UTC)", message.stored, "time"], ["Queue", message.broker + ":" + message.queue + " @ " + message.offset, "wide"],
      ["Tag", message.tags, "wide"], ["Keys", message.keys, "wide"], ["Body", message.body, "body"]];
    for (const [label, value, kind] of cells) {
      const cell = document.createElement("td");
      cell.dataset.label = label;
      cell.className = kind;
      cell.textContent = value;
      row.append(cell);
    }
    table.prepend(row);
    shown += 1;
    while (table.rows.length > rowsMax) table.deleteRow(-1);
  });
  events.addEventListener("idle", () => { if (!paused) say("good", shown + " messages"); });
  events.addEventListener("skipped", (event) => { if (!paused) say("good", shown + " messages, " + event.data + " more just now"); });
  events.addEventListener("trouble", (event) => say("bad", JSON.parse(event.data)));
  events.addEventListener("error", () => say("bad", "connection lost, trying again"));
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) say("", "paused");
  });
}

const here = document.querySelector("nav [aria-current]");
if (here) here.scrollIntoView({ block: "nearest", inline: "nearest" });
refreshing();
tailing();
