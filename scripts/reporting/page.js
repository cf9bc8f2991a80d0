// Names the point of a line that is next to the pointer: its run and, from where it stands in the axes, its numbers.
(() => {
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
const names = [...document.querySelectorAll(".legend div > span")].map(s => s.textContent);
const shown = (axis, value, digits) =>
  Number((axis.percent ? 100 * value : value).toPrecision(digits)) + (axis.percent ? " %" : "");
for (const svg of document.querySelectorAll("svg[data-axes]")) {
  const {box, x, y} = JSON.parse(svg.dataset.axes);
  const at = (axis, share) => axis.log ? axis.from * (axis.to / axis.from) ** share : axis.from + share * (axis.to - axis.from);
  let points;
  const find = () => [...svg.querySelectorAll("g[data-run] > path")].flatMap(path =>
    [...path.getAttribute("d").matchAll(/[ML] (\S+) (\S+)/g)].map(m => [+m[1], +m[2], path.parentNode.dataset.run]));
  svg.addEventListener("pointermove", event => {
    points ??= find();
    const place = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / place.width;
    const px = (event.clientX - place.left) * scale, py = (event.clientY - place.top) * scale;
    const far = p => Math.hypot(p[0] - px, p[1] - py);
    const point = points.reduce((best, p) => best && far(best) <= far(p) ? best : p, null);
    if (!point || far(point) > 25) return tip.style.display = "none";
    const at_x = at(x, (point[0] - box[0]) / (box[2] - box[0])), at_y = at(y, (point[1] - box[1]) / (box[3] - box[1]));
    tip.textContent = `${names[point[2]]}: ${x.name} ${shown(x, at_x, 6)}, ${shown(y, at_y, 4)}`;
    tip.style.display = "block";
    const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4);
    tip.style.left = left + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  svg.addEventListener("pointerleave", () => tip.style.display = "none");
}
})();
