/* The pages of mt-board: an index of runs, some runs, a search. Each has one stream of events from the server, whose first
   one is everything, so that a page that was cut off lacks nothing and has nothing twice. What a reader chooses is in the address. */
{
  const byId = (id) => document.getElementById(id);
  const { node: make } = elements;
  const main = byId("main"), kind = main.dataset.page;
  const address = new URLSearchParams(location.search);
  const remember = (changes) => {
    for (const [name, value] of Object.entries(changes)) {
      address.delete(name);
      for (const each of Array.isArray(value) ? value : [value]) if (each !== "" && each !== false && each !== null) address.append(name, each);
    }
    history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
  };
  const link = (path, pairs) => `${path}?${new URLSearchParams(pairs)}`;

  const figure = (value) => {
    if (typeof value !== "number" || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
    return size > 0 && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(5)));
  };
  const duration = (seconds) => {
    if (typeof seconds !== "number") return "";
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 60 ? `${minutes} min` : minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.round(minutes / 1440)} days`;
  };
  const problem = (text) => {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
  };

  // ------------------------------------------------------------------------------------------------------ connection

  /** Follows a stream while the page is in sight: a browser allows six connections, and tabs in the back need none. */
  const follow = (path, handlers) => {
    let source = null, timer = null;
    const say = (text, word) => {
      if (byId("live").textContent === text) return; // a reader is told once
      byId("live").textContent = text;
      byId("live").className = word;
    };
    const explain = async () => {
      const stop = new AbortController();
      try {
        const answer = await fetch(path(), { signal: stop.signal });
        if (!answer.ok) problem((await answer.text()).trim());
        stop.abort();
      } catch {
        say("no connection; trying again", "off");
      }
    };
    const close = () => {
      source?.close();
      clearTimeout(timer);
      source = null;
    };
    const open = () => {
      close();
      const own = source = new EventSource(path());
      own.onerror = () => {
        say("connection lost; trying again", "off");
        if (own.readyState !== EventSource.CLOSED || own !== source) return;
        explain();
        timer = setTimeout(open, 3000);
      };
      for (const [name, handle] of Object.entries(handlers)) {
        own.addEventListener(name, (event) => {
          handle(JSON.parse(event.data));
          say("live", "on");
        });
      }
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", (event) => event.persisted && open());
    open();
    return open;
  };

  // ----------------------------------------------------------------------------------------------------------- table

  /** A table that is sorted by its heads. Columns: {key, title, of: value to sort by, fill: (cell, row)}; rows are kept by their `id`. */
  const grid = (columns, { sort, picks = new Set(), onPick = () => {} }) => {
    const rows = new Map(), body = make("tbody"), heads = make("tr", {}, make("th", { className: "pick" }));
    let order = sort, wanted = "";
    const place = () => {
      const name = order.replace(/^-/, ""), sign = order.startsWith("-") ? -1 : 1, column = columns.find(({ key }) => key === name) ?? columns[0];
      const rank = (row) => column.of(row) ?? null;
      const compare = (a, b) => {
        const x = rank(a.row), y = rank(b.row);
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
      };
      const sorted = [...rows.values()].sort((a, b) => compare(a, b) || a.row.id.localeCompare(b.row.id, "en", { numeric: true }));
      sorted.forEach(({ element }, index) => {
        if (body.children[index] !== element) body.insertBefore(element, body.children[index] ?? null);
      });
      for (const { element, row } of sorted) element.hidden = !wanted.split(/\s+/).every((word) => `${row.id} ${row.text ?? row.state ?? ""} ${row.model ?? ""}`.toLowerCase().includes(word));
      for (const head of heads.children) head.ariaSort = head.dataset.key === name ? (sign > 0 ? "ascending" : "descending") : null;
    };
    for (const { key, title, number } of columns) {
      const button = make("button", { type: "button" }, title);
      const head = make("th", { scope: "col", className: number ? "number" : "" }, button);
      head.dataset.key = key;
      button.addEventListener("click", () => {
        order = order === key ? `-${key}` : key;
        remember({ sort: order });
        place();
      });
      heads.append(head);
    }
    const add = (row) => {
      const box = make("input", { type: "checkbox", checked: picks.has(row.id), ariaLabel: `choose ${row.id}` });
      box.addEventListener("change", () => {
        box.checked ? picks.add(row.id) : picks.delete(row.id);
        onPick(picks);
      });
      const cells = columns.map(({ key, number }) => make("td", { className: `${number ? "number " : ""}of-${key}` }));
      columns.forEach(({ title }, index) => (cells[index].dataset.title = title));
      const element = make("tr", {}, make("td", { className: "pick" }, box), ...cells);
      element.dataset.id = row.id;
      body.append(element);
      return { row, element, cells, box };
    };
    return {
      element: make("div", { className: "scroll grid" }, make("table", {}, make("thead", {}, heads), body)),
      set(row) {
        const entry = rows.get(row.id) ?? add(row);
        entry.row = row;
        rows.set(row.id, entry);
        columns.forEach(({ fill }, index) => fill(entry.cells[index], row));
      },
      remove(id) {
        rows.get(id)?.element.remove();
        rows.delete(id);
      },
      keep(ids) {
        for (const id of [...rows.keys()]) if (!ids.has(id)) this.remove(id);
      },
      filter(text) {
        wanted = text.trim().toLowerCase();
        place();
      },
      place,
      isShown: (id) => rows.has(id) && !rows.get(id).element.hidden,
      shown: () => [...body.children].filter((element) => !element.hidden),
      size: () => rows.size,
    };
  };
  const text = (of) => (cell, row) => {
    const now = String(of(row) ?? "");
    if (cell.textContent !== now) cell.textContent = now;
  };
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const spark = (cell, { spark: points = [], figure: key = "" }) => {
    if (points.length < 2) return void cell.replaceChildren();
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const spread = (values) => [Math.min(...values), Math.max(...values) - Math.min(...values) || 1];
    const [left, width] = spread(xs), [low, height] = spread(ys);
    const path = points.map(([x, y]) => `${(2 + (116 * (x - left)) / width).toFixed(1)} ${(25 - (22 * (y - low)) / height).toFixed(1)}`).join("L");
    const drawn = svg("svg", { class: "spark curve s0", viewBox: "0 0 120 28", width: 120, height: 28, role: "img", "aria-label": `${key.replace("eval_", "")} over the run` });
    drawn.append(svg("path", { class: "line", d: `M${path}` }));
    cell.replaceChildren(drawn);
  };
  /** Chosen rows, and the link that compares them. */
  const compareBar = () => {
    const bar = make("div", { className: "controls card still" }), filter = make("input", { type: "search", id: "filter", placeholder: "filter: name, state, model", ariaLabel: "filter runs", value: address.get("filter") ?? "" });
    const go = make("a", { className: "button", id: "compare" }), count = make("span", { className: "detail" });
    bar.append(filter, go, count);
    const update = (picks) => {
      remember({ pick: [...picks] });
      go.textContent = picks.size > 1 ? `Compare ${picks.size} runs` : picks.size ? "Open the run" : "Choose runs to compare";
      picks.size ? (go.href = link("/runs", [...picks].map((id) => ["run", id]))) : go.removeAttribute("href");
    };
    return { bar, filter, count, update };
  };

  // ----------------------------------------------------------------------------------------------------------- index

  const ORDER = { running: 0, silent: 1, failed: 2, stopped: 3, completed: 4 };
  const index = () => {
    const picks = new Set(address.getAll("pick")), { bar, filter, count, update } = compareBar();
    const columns = [
      { key: "run", title: "Run", of: (row) => row.id, fill: (cell, row) => {
        if (!cell.firstChild) cell.append(make("a", { href: link("/runs", [["run", row.id]]) }, row.name ?? row.id), make("span", { className: "detail" }));
        const model = (row.model ?? "").replace(/ from .*/, "");
        cell.lastChild.textContent = row.problem || [model, row.reason].filter(Boolean).join(": ");
        cell.lastChild.title = row.reason ?? "";
      } },
      { key: "state", title: "State", of: (row) => ORDER[row.state] ?? 9, fill: (cell, row) => {
        if (!cell.firstChild) cell.append(make("span"));
        Object.assign(cell.firstChild, { textContent: row.text ?? "", className: `status ${row.state}`, title: row.reason ?? "" });
      } },
      { key: "step", title: "Step", number: true, of: (row) => row.step, fill: text((row) => (row.step === null || row.step === undefined ? "–" : `${row.step.toLocaleString("en-US")}${row.total ? ` / ${row.total.toLocaleString("en-US")}` : ""}`)) },
      { key: "left", title: "Left", number: true, of: (row) => row.left, fill: text((row) => duration(row.left)) },
      { key: "rate", title: "Tokens/s", number: true, of: (row) => row.rate, fill: text((row) => figure(row.rate)) },
      { key: "last", title: "Last figure", number: true, of: (row) => row.last, fill: (cell, row) => {
        if (!cell.firstChild) cell.append(make("span"), make("small"));
        cell.firstChild.textContent = figure(row.last);
        cell.lastChild.textContent = typeof row.last === "number" ? ` ${row.figure}` : "";
      } },
      { key: "best", title: "Best", number: true, of: (row) => row.best?.[1], fill: text((row) => (row.best ? `${figure(row.best[1])} at ${row.best[0].toLocaleString("en-US")}` : "")) },
      { key: "curve", title: "Curve", of: (row) => row.spark?.length, fill: spark },
      { key: "started", title: "Started", of: (row) => row.started, fill: text((row) => (row.started ?? "").slice(0, 16).replace("T", " ")) },
    ];
    const runs = grid(columns, { sort: address.get("sort") ?? "state", picks, onPick: update });
    const searches = make("section", { hidden: true }), remarks = make("ul", { className: "remarks", hidden: true });
    const empty = make("p", { className: "detail", hidden: true }, "No run is here yet. A run appears as soon as mt-train has its folder.");
    byId("content").append(bar, empty, runs.element, searches, remarks);
    filter.addEventListener("input", () => {
      remember({ filter: filter.value });
      runs.filter(filter.value);
    });
    const take = ({ rows = [], gone = [], searches: found, remarks: said }) => {
      rows.forEach((row) => runs.set(row));
      gone.forEach((id) => runs.remove(id));
      runs.filter(filter.value);
      empty.hidden = runs.size() > 0;
      runs.element.hidden = !empty.hidden;
      count.textContent = `${runs.size().toLocaleString("en-US")} run${runs.size() === 1 ? "" : "s"}`;
      if (found) {
        searches.hidden = !Object.keys(found).length;
        searches.replaceChildren(make("h2", {}, "Searches"), make("ul", { className: "links" }, ...Object.entries(found).map(([id, name]) => make("li", {}, make("a", { href: link("/search", [["search", id]]) }, name)))));
      }
      if (said) {
        remarks.hidden = !said.length;
        remarks.replaceChildren(...said.map((each) => make("li", {}, each)));
      }
    };
    update(picks);
    follow(() => "/live/index", {
      snapshot: (content) => {
        byId("title").textContent = `Runs in ${content.title}`;
        document.title = `${content.title} – mt-board`;
        runs.keep(new Set((content.rows ?? []).map(({ id }) => id)));
        take(content);
      },
      delta: take,
    });
    shortcuts({ "/": () => filter.focus(), j: () => step(runs, 1), k: () => step(runs, -1), c: () => byId("compare").href && byId("compare").click(), x: () => document.activeElement.closest("tr")?.querySelector("input").click() });
  };
  const step = (runs, by) => {
    const links = runs.shown().map((element) => element.querySelector("a")).filter(Boolean);
    const now = links.findIndex((each) => each.closest("tr").contains(document.activeElement));
    links[Math.min(links.length - 1, Math.max(0, now < 0 ? 0 : now + by))]?.focus();
  };
  const shortcuts = (keys) => document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return void document.activeElement.blur?.();
    if (event.target.closest("input:not([type=checkbox]):not([type=radio]), select, textarea") || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  // ------------------------------------------------------------------------------------------------------------ runs

  /** Columns of a series, or corners of an axis, with what has come: `from` says where that begins; without it all is new. */
  const merge = (old, { from, ...news }) => {
    if (from === undefined || !old) return news;
    let cut = old.x.length;
    while (cut > 0 && old.x[cut - 1] >= from) cut--;
    for (const [name, column] of Object.entries(old)) {
      if (!Array.isArray(column)) continue;
      column.length = cut;
      column.push(...news[name]);
    }
    return old;
  };
  const grow = (data, news) => {
    for (const [place, { series, axes, last }] of Object.entries(news)) {
      const run = data.runs[place];
      for (const [key, columns] of Object.entries(series)) run.series[key] = merge(run.series[key], columns);
      for (const [key, corners] of Object.entries(axes)) run.axes[key] = merge(run.axes[key], corners);
      if ("last" in run) run.last = last;
    }
  };
  const framesIn = (element) => new Map([...element.querySelectorAll("figure.chart")].map((frame) => [frame.dataset.key, frame]));

  const runs = () => {
    const page = (window.board = { data: null, machine: null, charts: null, machineCharts: null });
    let ids = address.getAll("run");
    const chosen = () => ({
      axis: ["step", "tokens", "time"].includes(address.get("x")) ? address.get("x") : "step",
      log: address.has("log"),
      ...(Number(address.get("smooth")) >= 1 ? { steps: Math.round(Number(address.get("smooth"))) } : {}),
      hidden: new Set(address.getAll("hide").map((id) => ids.indexOf(id)).filter((place) => place >= 0)),
    });
    const onChange = ({ axis, log, steps, hidden }) => remember({
      x: axis === "step" ? "" : axis,
      log: log ? "1" : "",
      smooth: steps === page.data.average_over ? "" : String(steps),
      hide: [...hidden].map((place) => ids[place]),
    });
    const setParts = (parts = {}) => {
      for (const [name, html] of Object.entries(parts)) {
        const place = byId(`part-${name}`), open = new Map([...place.querySelectorAll("details")].map((each) => [each.firstChild.textContent, each.open]));
        place.innerHTML = html; // made by the server of escaped texts alone; the policy lets no script of it run
        for (const each of place.querySelectorAll("details")) each.open = open.get(each.firstChild.textContent) ?? each.open;
      }
      const state = document.querySelector("#part-heads .status")?.textContent ?? "";
      document.title = `${ids.length === 1 ? `${page.data.runs[0]?.name ?? ids[0]}: ${state}` : `${ids.length} runs`} – mt-board`;
    };
    const drawMachine = (machine) => {
      page.machine = machine;
      byId("machine").hidden = !machine;
      if (!machine) return;
      const frames = framesIn(byId("machine")), keys = new Set(machine.charts.map(({ key }) => key));
      for (const [key, frame] of frames) frame.hidden = !keys.has(key);
      page.machineCharts = drawCurves(machine, frames, machine.runs.length > 1 ? byId("machine-controls") : null, { steps: 1 });
      byId("machine-controls").hidden = machine.runs.length < 2;
    };
    const logLines = [], LONGEST = 4000;
    const shownLog = () => {
      const wanted = byId("log-filter").value.toLowerCase(), place = byId("log-lines");
      const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 20;
      place.textContent = (wanted ? logLines.filter((line) => line.toLowerCase().includes(wanted)) : logLines).join("");
      if (atEnd) place.scrollTop = place.scrollHeight;
    };
    const setLog = ({ log, logs, log_anew: anew }) => {
      if (logs) {
        byId("log-section").hidden = false;
        byId("log-rank").replaceChildren(...logs.map((name) => make("option", { value: name, selected: name === address.get("log-of") }, name.replace(/\D/g, ""))));
      }
      if (anew) logLines.length = 0;
      if (log) logLines.splice(0, Math.max(0, logLines.push(...log) - LONGEST));
      if (log || anew) shownLog();
    };
    const setCommand = (command) => {
      const place = byId("command");
      if (!command) return;
      const button = make("button", { type: "button" }, "copy");
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(command);
          button.textContent = "copied";
        } catch {
          getSelection().selectAllChildren(place.querySelector("code"));
        }
      });
      place.replaceChildren(make("span", { className: "detail" }, command.includes("--resume") ? "go on with it: " : "run it again: "), make("code", {}, command), button);
    };
    const snapshot = (content) => {
      problem(content.problem);
      page.data = content.data;
      ids = content.ids.length ? content.ids : ids;
      const names = content.data.runs.map(({ name }) => name);
      const links = ids.map((id, place) => make("a", { href: link("/runs", [["run", id]]) }, names[place] ?? id));
      byId("title").replaceChildren(...(ids.length === 1 ? [names[0] ?? ids[0]] : [`${ids.length} runs`]));
      if (ids.length > 1) main.insertBefore(byId("part-config"), byId("part-evaluations")); // what differs, before what came of it
      byId("title").append(...(ids.length > 1 ? [make("span", { className: "detail runs-links" }, ...links)] : []));
      byId("figures").innerHTML = content.figures;
      byId("curves").hidden = !content.data.charts.length;
      page.charts = drawCurves(page.data, framesIn(byId("figures")), byId("controls"), page.charts?.state ?? chosen(), onChange);
      for (const name of document.querySelectorAll("[id^=part-]")) if (!(name.id.slice(5) in content.parts)) name.replaceChildren();
      setParts(content.parts);
      drawMachine(content.machine);
      setCommand(content.command);
      setLog(content);
    };
    const delta = (content) => {
      if ("problem" in content) problem(content.problem);
      if (content.runs) {
        grow(page.data, content.runs);
        page.charts.refresh();
      }
      if (content.parts) setParts(content.parts);
      if (content.command) setCommand(content.command);
      if ("machine" in content) drawMachine(content.machine);
      if (content.growth) {
        grow(page.machine, content.growth);
        page.machineCharts.refresh();
      }
      setLog(content);
    };
    const path = () => link("/live/runs", [...address.getAll("run").map((id) => ["run", id]), ["log", address.get("log-of") ?? ""]]);
    const open = follow(path, { snapshot, delta });
    byId("log-filter").value = address.get("log-filter") ?? "";
    byId("log-filter").addEventListener("input", () => {
      remember({ "log-filter": byId("log-filter").value });
      shownLog();
    });
    byId("log-rank").addEventListener("change", () => {
      remember({ "log-of": byId("log-rank").value });
      open();
    });
    window.addEventListener("beforeprint", () => [page.charts, page.machineCharts].forEach((each) => each?.draw()));
    const press = (selector) => byId("controls").querySelector(selector)?.click();
    shortcuts({
      "/": () => byId("log-filter").focus(),
      l: () => press("#log"),
      s: () => press("input[value=step]"),
      t: () => press("input[value=tokens]"),
      h: () => press("input[value=time]"),
      u: () => (location.href = "/"),
    });
  };

  // ---------------------------------------------------------------------------------------------------------- search

  /** A cell as a number, a text, or nothing. */
  const value = (cell) => {
    const written = (cell ?? "").trim();
    return written === "" ? null : Number.isFinite(Number(written)) ? Number(written) : written;
  };
  const search = () => {
    const id = address.get("search") ?? "", { bar, filter, count, update } = compareBar();
    const picks = new Set(address.getAll("pick"));
    filter.placeholder = "filter: trial, state";
    let trials = null, shape = "", content = null;
    const pick = (row) => trials.element.querySelector(`tr[data-id="${CSS.escape(row)}"] input`)?.click();
    const axes = parallelAxes({ figure, onPick: pick });
    const drawAxes = () => {
      if (!content) return;
      const { metric, keys } = content, settings = keys.filter((key) => new Set(content.trials.map((row) => row[key])).size > 1);
      axes.draw({
        columns: [...settings.map((key) => ({ key: `=${key}`, title: key, names: hasNames(content, key) })), { key: "metric", title: metric, names: false }],
        trials: content.trials.map((row) => ({
          ...row,
          ...Object.fromEntries(settings.map((key) => [`=${key}`, value(row[key])])),
          metric: typeof value(row[metric]) === "number" ? value(row[metric]) : null,
        })),
        better: content.better,
        picks,
        shown: (row) => trials.isShown(row.id),
      });
    };
    const hasNames = ({ trials: rows }, key) => rows.some((row) => typeof value(row[key]) === "string");
    byId("title").textContent = id;
    document.title = `${id} – mt-board`;
    byId("content").append(bar, axes.element);
    filter.addEventListener("input", () => {
      remember({ filter: filter.value });
      trials?.filter(filter.value);
      drawAxes();
    });
    const shorten = (cell) => (typeof value(cell) === "number" ? figure(value(cell)) : cell ?? "");
    const build = ({ metric, keys, ...rest }) => [
      { key: "trial", title: "Trial", number: true, of: (row) => value(row.trial), fill: (cell, row) => cell.replaceChildren(row.run ? make("a", { href: link("/runs", [["run", row.id]]) }, row.trial) : row.trial) },
      { key: "state", title: "State", of: (row) => row.state, fill: (cell, row) => cell.replaceChildren(make("span", { className: `status ${row.best ? "completed" : row.state}`, title: row.error ?? "" }, row.best ? "best" : row.state)) },
      { key: "metric", title: metric || "figure", number: true, of: (row) => value(row[metric]), fill: text((row) => shorten(row[metric])) },
      ...keys.map((key, place) => ({ key: `key-${place}`, title: key, number: !hasNames(rest, key), of: (row) => value(row[key]), fill: text((row) => shorten(row[key])) })),
      { key: "steps", title: "Steps", number: true, of: (row) => value(row.steps), fill: text((row) => row.steps) },
      { key: "seconds", title: "Time", number: true, of: (row) => value(row.seconds), fill: text((row) => duration(value(row.seconds))) },
    ];
    update(picks);
    follow(() => link("/live/search", [["search", id]]), { snapshot: (news) => {
      content = news;
      problem(news.remarks.join("; "));
      const now = JSON.stringify([content.metric, content.keys, content.keys.map((key) => hasNames(content, key))]);
      if (now !== shape) {
        trials?.element.remove();
        trials = grid(build(content), { sort: address.get("sort") ?? "trial", picks, onPick: (chosen) => {
          update(chosen);
          drawAxes();
        } });
        byId("content").append(trials.element);
        shape = now;
      }
      trials.keep(new Set(content.trials.map((row) => row.id)));
      content.trials.forEach((row) => trials.set(row));
      trials.filter(filter.value);
      count.textContent = `${content.trials.length} trial${content.trials.length === 1 ? "" : "s"}`;
      drawAxes();
    } });
    shortcuts({ "/": () => filter.focus(), j: () => step(trials, 1), k: () => step(trials, -1), x: () => document.activeElement.closest("tr")?.querySelector("input").click(), c: () => byId("compare").href && byId("compare").click(), u: () => (location.href = "/") });
  };

  ({ index, runs, search })[kind]();
}
