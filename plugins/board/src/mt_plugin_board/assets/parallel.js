/* Draws the trials of a search as lines over parallel axes: one axis for each setting, the last one for the figure.
   `onPick` is told the id of a trial that was chosen with the mouse or by Enter, `figure` writes a number.
   Returns {element, draw}: draw({columns: [{key, title, names}], trials, better, picks, shown}), where `names` says that the values of
   a column are names, `better` is 1 or -1, `picks` the chosen ids and `shown` tells which trials are. */
const parallelAxes = ({ figure, onPick }) => {
  const HEIGHT = 300, TOP = 34, BOTTOM = 16, LEFT = 16, RIGHT = 104, APART = 128;
  const MOST_LINES = 1000, MOST_NAMES = 14, MOST_LETTERS = 17, FEW_VALUES = 8;
  const LOGARITHMIC = 50; // positive numbers whose largest is so many times the least
  const { node, shape } = elements;
  const cut = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);
  const said = node("p", { className: "detail", role: "status" }), place = node("div", { className: "scroll lines", tabIndex: 0, role: "group" });
  const element = node("section", { hidden: true }, node("h2", {}, "Settings and figure"), place, said);
  let lines = [], now = -1, last = null;

  /** Where the values of a column are, from 0 below to 1 above, and what stands beside the axis. */
  const axisOf = ({ key, title, names }, trials) => {
    const values = trials.map((trial) => trial[key]).filter((value) => value !== null);
    if (names) {
      const all = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const at = (value) => (all.length < 2 ? 0.5 : all.indexOf(String(value)) / (all.length - 1));
      const every = Math.ceil(all.length / MOST_NAMES);
      return { key, title, at, ticks: all.filter((_, index) => index % every === 0).map((name) => [at(name), name]) };
    }
    const each = [...new Set(values)].sort((a, b) => a - b);
    const low = Math.min(...values), high = Math.max(...values);
    if (!values.length || low === high) return { key, title, at: () => 0.5, ticks: values.length ? [[0.5, figure(low)]] : [] };
    const logarithmic = low > 0 && high / low >= LOGARITHMIC, of = logarithmic ? Math.log : (value) => value;
    const at = (value) => (of(value) - of(low)) / (of(high) - of(low));
    const middle = logarithmic ? Math.sqrt(low * high) : (low + high) / 2;
    const far = (value, index, all) => index === 0 || value === high || (at(value) - at(all[index - 1]) >= 0.08 && at(high) - at(value) >= 0.08);
    const ticks = (each.length <= FEW_VALUES ? each.filter(far) : [low, middle, high]).map((value) => [at(value), figure(value)]);
    return { key, title: logarithmic ? `log ${title}` : title, at, ticks };
  };
  const describe = (columns, trial) => columns.map(({ key, title }) => `${title} ${typeof trial[key] === "number" ? figure(trial[key]) : trial[key] ?? "–"}`).join(", ");
  const point = (index) => {
    lines[now]?.path.classList.remove("now");
    now = index;
    const line = lines[now];
    if (!line) return void (said.textContent = last.hint);
    line.path.classList.add("now");
    line.path.parentNode.append(line.path); // over the others
    said.textContent = line.text;
  };
  const draw = ({ columns, trials, better, picks, shown }) => {
    const drawn = trials.filter((trial) => columns.some(({ key }) => trial[key] !== null));
    element.hidden = columns.length < 2 || !drawn.length;
    if (element.hidden) return;
    const width = Math.max(place.clientWidth - 2, LEFT + RIGHT + APART * (columns.length - 1));
    const x = (index) => LEFT + ((width - LEFT - RIGHT) * index) / (columns.length - 1);
    const y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
    const axes = columns.map((column) => axisOf(column, drawn)), metric = axes.at(-1);
    const goodness = (trial) => (trial[metric.key] === null ? 0 : better > 0 ? metric.at(trial[metric.key]) : 1 - metric.at(trial[metric.key]));
    const visible = drawn.filter(shown).sort((a, b) => goodness(b) - goodness(a)).slice(0, MOST_LINES).reverse(); // the best above the others
    const group = shape("g");
    const kept = lines[now]?.id;
    lines = visible.map((trial) => {
      const points = axes.map(({ key, at }, index) => (trial[key] === null ? "" : `${x(index).toFixed(1)} ${y(at(trial[key])).toFixed(1)}`));
      const path = points.map((each, index) => each && `${points[index - 1] ? "L" : "M"}${each}`).join(""); // a value that is missing is a gap
      const name = `line${trial.best ? " best" : ""}${picks.has(trial.id) ? " chosen" : ""}${trial.state === "complete" ? "" : " unfinished"}`;
      const made = shape("path", { class: name, d: path, "stroke-opacity": (0.25 + 0.75 * goodness(trial) ** 2).toFixed(2) });
      group.append(made);
      return { id: trial.id, path: made, text: `Trial ${trial.trial}${trial.best ? " (best)" : trial.state === "complete" ? "" : ` (${trial.state})`}: ${describe(columns, trial)}` };
    });
    const frame = axes.map(({ title, ticks }, index) => shape("g", {},
      shape("line", { class: "axis", x1: x(index), x2: x(index), y1: y(0), y2: y(1) }),
      shape("text", { class: "tick title", x: x(index) - 6, y: 14 }, cut(title), shape("title", {}, title)),
      ...ticks.map(([share, text]) => shape("text", { class: "tick", x: x(index) + 5, y: y(share) + 4 }, cut(text), shape("title", {}, text)))));
    const best = lines.find(({ path }) => path.classList.contains("best"));
    const label = `${lines.length} trials over ${columns.slice(0, -1).map(({ title }) => title).join(", ")} and ${metric.title}.${best ? ` ${best.text}` : ""}`;
    const picture = shape("svg", { class: "parallel", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label }, group, ...frame);
    last = { columns, trials, better, picks, shown, hint: `Strong lines are good trials${best ? ", the thick one the best" : ""}. Arrow keys go from trial to trial, Enter chooses.${lines.length < drawn.filter(shown).length ? ` The best ${MOST_LINES.toLocaleString("en-US")} are drawn.` : ""}` };
    place.replaceChildren(picture);
    place.ariaLabel = "trials, drawn";
    point(lines.findIndex(({ id }) => id === kept));
  };
  const nearest = (event) => {
    const { left, top } = place.firstChild.getBoundingClientRect(), spot = new DOMPoint(event.clientX - left, event.clientY - top);
    let found = -1, least = 10; // pixels within which a line is meant
    lines.forEach(({ path }, index) => {
      const points = path.getAttribute("d").slice(1).split("M").flatMap((run) => run.split("L").map((pair) => pair.split(" ").map(Number)).map((pair, at, all) => [pair, all[at + 1] ?? pair]));
      for (const [[ax, ay], [bx, by]] of points) {
        if (spot.x < ax - 4 || spot.x > bx + 4) continue;
        const away = Math.abs(spot.y - (bx > ax ? ay + ((by - ay) * (spot.x - ax)) / (bx - ax) : ay));
        if (away < least) [found, least] = [index, away];
      }
    });
    return found;
  };
  place.addEventListener("pointermove", (event) => lines.length && point(nearest(event)));
  place.addEventListener("pointerleave", () => lines.length && point(-1));
  place.addEventListener("click", (event) => {
    if (lines[nearest(event)]) onPick(lines[nearest(event)].id);
  });
  place.addEventListener("keydown", (event) => {
    const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
    if (by) point(now < 0 ? lines.length - 1 : Math.min(lines.length - 1, Math.max(0, now + by))); // the first is the best
    else if (event.key === "Enter" && lines[now]) onPick(lines[now].id);
    else return;
    event.preventDefault();
  });
  let wide = 0;
  new ResizeObserver(() => {
    if (last && place.clientWidth !== wide) draw(last);
    wide = place.clientWidth;
  }).observe(place);
  return { element, draw };
};
