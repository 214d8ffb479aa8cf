/* Draws curves of runs. Data: {average_over, charts, runs: [{name, axes: {tokens, time}, series}]}, where a series has
   columns: x first step, last step of a group (absent: groups of one step), y mean (null: a gap), lo and hi.
   `figures` are the frames by their keys, `controls` the element for what a reader chooses, `chosen` what is chosen at first
   ({axis, log, steps, hidden: Set of places of runs}) and `onChange` is told when that changes. Returns {state, draw, refresh}:
   `data.clock` names an axis of seconds in place of steps, and each run then has the `last` of them.
   `refresh` draws again after the data has changed, what is out of sight only when it comes into sight. */
const drawCurves = (data, figures, controls, chosen = {}, onChange = () => {}) => {
  const COLOURS = 6; // as in report.css
  const NEAR = 14; // pixels within which a point belongs to the crosshair
  const state = { axis: "step", log: false, steps: data.average_over, hidden: new Set(), ...chosen };

  // ------------------------------------------------------------------------------------------------------- elements

  const { node, shape } = elements;
  const colour = (index) => `s${index % COLOURS}` + (index < COLOURS ? "" : " dashed");

  // -------------------------------------------------------------------------------------------------------- numbers

  const number = (value) => {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
    if (size > 0 && size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(5)));
  };
  const LEAST = 1e-300, MOST = 8e307; // ends of an axis between which every difference and every ratio of neighbours is a number
  const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const tickText = (value, step) => {
    if (value === 0) return "0";
    const size = Math.max(Math.abs(value), step);
    if (size < 1e-3) return value.toExponential(1).replace(".0e", "e");
    const [unit, letter] = UNITS.find(([unit]) => size >= unit) ?? [1, ""];
    const whole = (digits) => Math.abs((step / unit) * 10 ** digits - Math.round((step / unit) * 10 ** digits)) < 1e-6;
    const digits = [0, 1, 2, 3, 4, 5].find(whole) ?? 6;
    const text = (value / unit).toFixed(digits);
    return (text.includes(".") ? text.replace(/\.?0+$/, "") : text) + letter;
  };
  const niceStep = (span, count) => {
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    return power * ([1, 2, 2.5, 5].find((factor) => factor * power >= rough * 0.999) ?? 10);
  };
  const linearTicks = (low, high, count, whole = false) => {
    const step = whole ? Math.max(1, Math.ceil(niceStep(high - low, count))) : niceStep(high - low, count);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
    return ticks.map((value) => [value, tickText(value, step)]);
  };
  const logTicks = (low, high) => {
    const decades = Math.log10(high) - Math.log10(low);
    const factors = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const every = Math.max(1, Math.ceil(decades / 6));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      if (power % every) continue;
      for (const factor of factors) ticks.push(factor * 10 ** power);
    }
    const inside = ticks.filter((value) => value >= low * 0.9999 && value <= high * 1.0001);
    return inside.length > 1 ? inside.map((value) => [value, tickText(value, value / 10)]) : linearTicks(low, high, 4);
  };

  // ------------------------------------------------------------------------------------------------------------ axes

  const TIMES = [[7200, 3600, "h"], [180, 60, "min"], [0, 1, "s"]];
  const timeUnit = () => {
    const longest = Math.max(0, ...data.runs.map((run) => (data.clock ? run.last : run.axes.time.y.at(-1)) ?? 0));
    return TIMES.find(([from]) => longest >= from);
  };
  const axisTitle = () => data.clock ? `${data.clock} (${timeUnit()[2]})` : ({ step: "step", tokens: "tokens trained", time: `time in steps (${timeUnit()[2]})` })[state.axis];
  const interpolate = ({ x, y }, step) => {
    if (!x.length) return null;
    let low = 0, high = x.length - 1;
    if (step <= x[0]) return y[0];
    if (step >= x[high]) return y[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= step) low = middle; else high = middle;
    }
    return y[low] + ((y[high] - y[low]) * (step - x[low])) / (x[high] - x[low]);
  };
  const place = (run, step) => {
    if (data.clock) return step / timeUnit()[1];
    if (state.axis === "step") return step;
    const value = interpolate(run.axes[state.axis], step);
    return value === null || state.axis === "tokens" ? value : value / timeUnit()[1];
  };

  // ---------------------------------------------------------------------------------------------------------- points

  /** The points of a series on the present axis; y is null at a gap and where a logarithm does not exist. */
  const points = (run, key) => {
    const series = run.series[key];
    if (!series) return [];
    const fine = (value) => (value !== null && (!state.log || value > 0) ? value : null);
    return series.x.map((first, i) => {
      const last = series.last?.[i] ?? first, y = fine(series.y[i]);
      const low = series.lo ? fine(series.lo[i]) ?? y : y, high = series.hi ? fine(series.hi[i]) ?? y : y;
      return { first, last, x: place(run, (first + last) / 2), y, low, high };
    }).filter((point) => point.x !== null);
  };
  /** Exponential moving average over about this many steps, corrected for its start as Adam's is; a gap stays one.
      A group counts as many times as it has steps, so that long and short runs are averaged alike. */
  const smooth = (raw, steps) => {
    let average = 0, correction = 1;
    return raw.map((point) => {
      if (point.y === null) return point;
      const past = (1 - 1 / steps) ** (point.last - point.first + 1);
      average = past * average + (1 - past) * point.y;
      correction *= past;
      return { ...point, y: average / (1 - correction) };
    });
  };
  const nearest = (list, x) => {
    let best = null;
    for (const point of list) {
      if (point.y !== null && (best === null || Math.abs(point.x - x) < Math.abs(best.x - x))) best = point;
    }
    return best;
  };

  // ----------------------------------------------------------------------------------------------------------- chart

  class Chart {
    constructor(figure, spec) {
      this.spec = spec;
      this.box = figure.querySelector(".plot");
      this.tip = node("div", { className: "tip", hidden: true });
      this.tip.setAttribute("role", "status");
      this.cursor = null;
      this.width = 0;
      this.stale = false;
      new ResizeObserver(() => this.box.clientWidth !== this.width && this.draw()).observe(this.box);
      new IntersectionObserver(([{ isIntersecting }]) => {
        this.inSight = isIntersecting;
        if (isIntersecting && this.stale) this.refresh();
      }, { rootMargin: "200px" }).observe(this.box);
    }

    /** Draws anew; crosshair and focus stay where they are. */
    refresh() {
      if (!this.inSight) return void (this.stale = true);
      const { cursor } = this, focused = this.svg === document.activeElement;
      this.draw();
      if (focused) this.svg.focus({ preventScroll: true });
      if (cursor !== null && this.toX) this.show(cursor, false);
    }

    draw() {
      this.stale = false;
      this.width = this.box.clientWidth;
      this.height = ["loss", "reward"].includes(this.spec.key) ? Math.min(380, Math.max(260, this.width * 0.42)) : 230;
      this.curves = this.collect();
      this.svg = shape("svg", { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height,
        role: "img", tabindex: 0, "aria-label": this.describe() });
      this.svg.append(shape("title", {}, this.describe()));
      this.box.replaceChildren(this.svg, this.tip);
      this.hide();
      const drawn = this.curves.flatMap((curve) => [...curve.raw, ...curve.heldOut]).filter((point) => point.y !== null);
      if (!drawn.length) return this.sayEmpty();
      this.scale(drawn);
      this.axes();
      for (const curve of this.curves) this.curve(curve);
      this.listen();
    }

    collect() {
      return data.runs.map((run, index) => {
        const shown = !state.hidden.has(index);
        const heldOutOnly = this.spec.held_out === this.spec.key;
        const raw = shown && !heldOutOnly ? points(run, this.spec.key) : [];
        const smoothed = this.spec.smooth && state.steps > 1 ? smooth(raw, state.steps) : null;
        return { run, index, raw, smoothed, heldOut: shown && this.spec.held_out ? points(run, this.spec.held_out) : [] };
      });
    }

    describe() {
      const parts = this.curves.filter(({ raw, heldOut }) => raw.length + heldOut.length).map(({ run, raw, heldOut }) => {
        const list = (raw.length ? raw : heldOut).filter((point) => point.y !== null);
        if (!list.length) return `${run.name}: no finite value`;
        const from = list[0], to = list[list.length - 1];
        return `${run.name}: ${number(from.y)} at step ${from.first} to ${number(to.y)} at step ${to.last}`;
      });
      return `${this.spec.title} by ${axisTitle()}. ${parts.join("; ") || "Nothing is shown"}. Arrow keys read values.`;
    }

    sayEmpty() {
      const text = state.hidden.size ? "nothing to show: runs are hidden" : state.log ? "no value above 0" : "no finite value";
      this.svg.append(shape("text", { class: "empty", x: this.width / 2, y: this.height / 2 }, text));
    }

    scale(drawn) {
      const bounds = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
      let [left, right] = bounds(drawn.map((point) => point.x));
      let [low, high] = bounds(drawn.flatMap((point) => [point.low, point.high]));
      if (left === right) [left, right] = [left - 1, right + 1];
      if (state.log) {
        if (low === high) [low, high] = [low / 2, high * 2];
        const room = 10 ** ((Math.log10(high) - Math.log10(low)) * 0.04); // not of high / low, which may be no number
        [low, high] = [Math.max(low / room, LEAST), Math.min(high * room, MOST)];
        if (high <= low) high = 10 * low;
      } else {
        [low, high] = [Math.max(low, -MOST), Math.min(high, MOST)];
        if (this.spec.zero && low >= 0) low = 0;
        if (high - low < LEAST) [low, high] = Math.abs(high) < LEAST ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
        const room = (high - low) * 0.05;
        [low, high] = [this.spec.zero && low === 0 ? 0 : low - room, high + room];
      }
      this.yTicks = state.log ? logTicks(low, high) : linearTicks(low, high, this.height / 50);
      const label = Math.max(...this.yTicks.map(([, text]) => text.length));
      this.frame = { left: 16 + label * 6.6, right: this.width - 14, top: 10, bottom: this.height - 42 };
      this.xTicks = linearTicks(left, right, Math.max(2, (this.frame.right - this.frame.left) / 68), state.axis !== "time");
      const { frame } = this, y = state.log ? Math.log : (value) => Math.max(-MOST, Math.min(value, MOST));
      this.toX = (value) => frame.left + ((value - left) / (right - left)) * (frame.right - frame.left);
      this.toY = (value) => frame.bottom - ((y(value) - y(low)) / (y(high) - y(low))) * (frame.bottom - frame.top);
      this.fromX = (pixel) => left + ((pixel - frame.left) / (frame.right - frame.left)) * (right - left);
    }

    axes() {
      const { left, right, top, bottom } = this.frame;
      for (const [value, text] of this.yTicks) {
        const y = this.toY(value).toFixed(1);
        this.svg.append(shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
        this.svg.append(shape("text", { class: "tick y", x: left - 8, y, dy: "0.32em" }, text));
      }
      for (const [value, text] of this.xTicks) {
        const x = this.toX(value);
        this.svg.append(shape("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
        const anchor = x > right - 12 ? "end" : x < left + 8 ? "start" : "middle";
        this.svg.append(shape("text", { class: "tick x", x, y: bottom + 17, "text-anchor": anchor }, text));
      }
      this.svg.append(shape("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
      this.svg.append(shape("text", { class: "tick x", x: (left + right) / 2, y: bottom + 35 }, axisTitle()));
      this.svg.append(shape("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" }));
    }

    /** Path of the points, broken at gaps. A point between two gaps becomes a dot. */
    path(list) {
      let text = "", open = false;
      list.forEach((point, i) => {
        if (point.y === null) return void (open = false);
        const alone = !open && (list[i + 1]?.y ?? null) === null;
        text += `${open ? "L" : "M"}${this.toX(point.x).toFixed(1)} ${this.toY(point.y).toFixed(1)}${alone ? "h0.01" : ""}`;
        open = true;
      });
      return text;
    }

    band(list) {
      let text = "", part = [];
      const close = () => {
        const edge = (point, y) => `${this.toX(point.x).toFixed(1)} ${this.toY(y).toFixed(1)}`;
        if (part.length > 1) {
          text += "M" + part.map((point) => edge(point, point.high)).join("L");
          text += "L" + part.reverse().map((point) => edge(point, point.low)).join("L") + "Z";
        }
        part = [];
      };
      for (const point of list) point.y === null ? close() : part.push(point);
      close();
      return text;
    }

    curve({ index, run, raw, smoothed, heldOut }) {
      const group = shape("g", { class: `curve ${colour(index)}`, "data-run": run.name });
      if (raw.some((point) => point.low !== point.high)) group.append(shape("path", { class: "band", d: this.band(raw) }));
      if (raw.length) group.append(shape("path", { class: smoothed ? "raw" : "line", d: this.path(raw) }));
      if (smoothed && raw.length) group.append(shape("path", { class: "line", d: this.path(smoothed) }));
      if (heldOut.length) group.append(shape("path", { class: "held-out", d: this.path(heldOut) }));
      const few = heldOut.length * 9 < this.width;
      for (const point of few ? heldOut : []) {
        if (point.y === null) continue;
        group.append(shape("circle", { class: "mark", cx: this.toX(point.x).toFixed(1), cy: this.toY(point.y).toFixed(1), r: this.width < 500 ? 3 : 4 }));
      }
      this.svg.append(group);
    }

    // ------------------------------------------------------------------------------------------------------ crosshair

    listen() {
      const at = (event) => this.show(this.fromX(event.clientX - this.svg.getBoundingClientRect().left), false);
      this.svg.addEventListener("pointermove", at);
      this.svg.addEventListener("pointerdown", at);
      this.svg.addEventListener("pointerleave", () => this.hide());
      this.svg.addEventListener("blur", () => this.hide());
      this.svg.addEventListener("keydown", (event) => this.key(event));
    }

    /** Every x to which `show` snaps, in order: where the arrow keys stop. */
    stops() {
      const all = this.curves.flatMap(({ raw, heldOut }) => (raw.length ? raw : heldOut)).filter((point) => point.y !== null);
      return [...new Set(all.map((point) => point.x))].sort((a, b) => a - b);
    }

    key(event) {
      if (event.key === "Escape") return this.hide();
      const stops = this.stops(), now = this.cursor === null ? -1 : stops.indexOf(this.cursor);
      const jump = event.shiftKey ? 10 : 1;
      const next = { ArrowRight: now + jump, ArrowLeft: now < 0 ? stops.length - 1 : now - jump, Home: 0, End: stops.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      this.show(stops[Math.min(stops.length - 1, Math.max(0, next))], true);
    }

    show(x, aloud) {
      const shown = this.curves.filter(({ raw, heldOut }) => raw.length + heldOut.length);
      const hits = shown.map((curve) => nearest(curve.raw.length ? curve.raw : curve.heldOut, x));
      const snap = nearest(hits.filter(Boolean), x);
      if (!snap) return;
      this.cursor = snap.x;
      this.svg.querySelectorAll(".dot").forEach((dot) => dot.remove());
      const near = (point) => point && Math.abs(this.toX(point.x) - this.toX(snap.x)) <= NEAR ? point : null;
      const rows = shown.flatMap((curve, i) => this.rows(curve, near(hits[i]), near(nearest(curve.heldOut, snap.x)), hits[i], snap));
      const cross = this.svg.querySelector(".cross"), pixel = this.toX(snap.x);
      cross.setAttribute("x1", pixel);
      cross.setAttribute("x2", pixel);
      cross.setAttribute("visibility", "visible");
      this.tip.setAttribute("aria-live", aloud ? "polite" : "off");
      this.tip.replaceChildren(node("div", { className: "at" }, this.heading(snap)), node("dl", {}, ...rows.flat()));
      this.tip.hidden = false;
      const room = this.width - this.tip.offsetWidth - 4;
      const side = pixel + 14 <= room ? pixel + 14 : pixel - 14 - this.tip.offsetWidth;
      this.tip.style.left = `${Math.max(4, Math.min(room, side))}px`;
    }

    heading({ first, last, x }) {
      if (data.clock) return `${number(x)} ${timeUnit()[2]}`;
      const format = (step) => step.toLocaleString("en-US");
      const steps = first === last ? `step ${format(first)}` : `steps ${format(first)}–${format(last)}`;
      if (state.axis === "step") return steps;
      return (state.axis === "tokens" ? `${number(x)} tokens` : `${number(x)} ${timeUnit()[2]}`) + ` · ${steps}`;
    }

    rows({ run, index, raw, smoothed }, point, heldOut, found, snap) {
      const rows = [], many = data.runs.length > 1;
      const row = (label, value, extra = "") => rows.push([
        node("dt", {}, node("i", { className: `swatch ${colour(index)}` }), label),
        node("dd", {}, value, node("small", {}, extra)),
      ]);
      const steps = (hit) => (hit.first === snap.first ? "" : ` step ${hit.first.toLocaleString("en-US")}`);
      if (raw.length) {
        const label = many ? run.name : this.spec.title;
        const range = point && point.low !== point.high ? ` ${number(point.low)} … ${number(point.high)}` : "";
        if (!point) row(label, "–", found && snap.x > found.x ? ` ended at step ${found.last.toLocaleString("en-US")}` : "");
        else row(label, number(point.y), range || steps(point));
        if (point && smoothed) {
          rows.push([node("dt", { className: "sub" }, "average"), node("dd", {}, number(smoothed[raw.indexOf(point)].y))]);
        }
      }
      if (heldOut) {
        this.dot(heldOut, index);
        if (raw.length) rows.push([node("dt", { className: "sub" }, "evaluation"), node("dd", {}, number(heldOut.y), node("small", {}, steps(heldOut)))]);
        else row(many ? run.name : "evaluation", number(heldOut.y), steps(heldOut));
      }
      if (point && raw.length) this.dot(point, index);
      return rows;
    }

    dot(point, index) {
      const dot = shape("circle", { class: `dot ${colour(index)}`, cx: this.toX(point.x), cy: this.toY(point.y), r: 4.5 });
      this.svg.append(dot);
    }

    hide() {
      this.cursor = null;
      this.tip.hidden = true;
      this.svg.querySelector(".cross")?.setAttribute("visibility", "hidden");
      this.svg.querySelectorAll(".dot").forEach((dot) => dot.remove());
    }
  }

  // -------------------------------------------------------------------------------------------------------- controls

  const all = data.charts.map((spec) => new Chart(figures.get(spec.key), spec));
  const drawAll = () => all.forEach((chart) => chart.draw());
  const change = () => {
    drawAll();
    onChange(state);
  };

  const choice = (key, text) => {
    const input = node("input", { type: "radio", name: "axis", value: key, checked: key === state.axis });
    input.addEventListener("change", () => { state.axis = key; change(); });
    return node("label", {}, input, node("span", {}, text));
  };
  const axisChoice = () => {
    const group = node("div", { className: "choice" }, choice("step", "step"), choice("tokens", "tokens"), choice("time", "time"));
    group.setAttribute("role", "radiogroup");
    group.setAttribute("aria-label", "horizontal axis");
    return group;
  };
  const logSwitch = () => {
    const input = node("input", { type: "checkbox", id: "log", checked: state.log });
    input.addEventListener("change", () => { state.log = input.checked; change(); });
    return node("label", { className: "switch" }, input, " log scale");
  };
  /** 1 (off), 2, 5, 10 and so on, to a tenth of the longest run. */
  const averages = () => {
    const longest = Math.max(0, ...data.runs.map((run) => run.axes.tokens.x.at(-1) ?? 0)), stops = [];
    for (let power = 1; power <= Math.max(100, longest / 10); power *= 10) stops.push(power, 2 * power, 5 * power);
    return [...new Set([...stops, state.steps])].sort((a, b) => a - b);
  };
  const smoothingSlider = () => {
    const stops = averages();
    const input = node("input", { type: "range", id: "smoothing", min: 0, max: stops.length - 1, step: 1 });
    input.value = stops.indexOf(state.steps);
    const shown = node("output");
    const say = () => {
      shown.value = state.steps === 1 ? "off" : `${state.steps.toLocaleString("en-US")} steps`;
      input.setAttribute("aria-valuetext", shown.value);
    };
    input.addEventListener("input", () => {
      state.steps = stops[input.value];
      say();
      change();
    });
    say();
    return node("label", { className: "slider", title: "About how many steps the moving average covers" }, "average over ", input, " ", shown);
  };
  const legend = () => {
    const buttons = data.runs.map((run, index) => {
      const button = node("button", { type: "button", title: "Show or hide this run" }, node("i", { className: `swatch ${colour(index)}` }), run.name);
      button.setAttribute("aria-pressed", String(!state.hidden.has(index)));
      button.addEventListener("click", () => {
        const hide = !state.hidden.has(index);
        hide ? state.hidden.add(index) : state.hidden.delete(index);
        button.setAttribute("aria-pressed", String(!hide));
        change();
      });
      return button;
    });
    return node("div", { className: "legend" }, ...buttons);
  };
  const key = () => {
    const sample = (kind, text) => {
      const line = shape("path", { class: kind, d: "M1 7H27" });
      const svg = shape("svg", { width: 28, height: 14, class: "curve", "aria-hidden": "true" }, line);
      if (kind === "held-out") svg.append(shape("circle", { class: "mark", cx: 14, cy: 7, r: 4 }));
      return node("span", {}, svg, text);
    };
    return node("div", { className: "key" }, sample("raw", "as measured"), sample("line", "moving average"), sample("held-out", "evaluation"));
  };

  if (controls) {
    const several = data.runs.length > 1 ? [legend()] : [];
    controls.replaceChildren(...(data.clock ? several : [axisChoice(), logSwitch(), smoothingSlider(), ...several, key()]));
    controls.hidden = false;
  }
  drawAll();
  return { state, draw: drawAll, refresh: () => all.forEach((chart) => chart.refresh()) };
};
