{
  const figures = new Map([...document.querySelectorAll("figure.chart")].map((figure) => [figure.dataset.key, figure]));
  drawCurves(JSON.parse(document.getElementById("figures").textContent), figures, document.getElementById("controls"));
}
