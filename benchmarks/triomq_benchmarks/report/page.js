(async () => {
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (each) => each.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
    for (const card of document.querySelectorAll(".chart")) {
      const plot = card.querySelector(".plot"), figure = JSON.parse(card.querySelector("script").textContent);
      await Plotly.newPlot(plot, figure.data, figure.layout, {
        displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
        toImageButtonOptions: { format: "svg", filename: card.id },
      });
      card.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", shown);
        Plotly.restyle(plot, { visible: shown }, JSON.parse(button.dataset.traces));
      }));
    }
    document.documentElement.dataset.drawn = "yes";
  } catch (error) {
    const failure = document.getElementById("failure");
    failure.textContent = "The plots could not be drawn (a browser of 2023 or newer can): " + error;
    failure.hidden = false;
    throw error;
  }
})();
