"use strict";
(() => {
  const samples = JSON.parse(document.getElementById("replay-data").textContent);
  const root = document.getElementById("replay");
  const [sample, pace] = root.querySelectorAll(".controls select");
  const [play, step, restart] = root.querySelectorAll("button");
  const slider = root.querySelector("input");
  const panes = [...root.querySelectorAll(".pane")].map(element => ({
    method: element.querySelector("select"),
    text: element.querySelector(".text"),
    state: element.querySelector(".state"),
  }));
  let time = 0, last = null;

  const make = (tag, parent, text = "", name = "") => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const chosen = () => samples[sample.value];
  const total = answer => answer.prefill_s + answer.decode_s;
  // The prefill is step 0. Times of single steps are not recorded: they share the decode time.
  const endOf = (answer, i) =>
    answer.prefill_s + answer.decode_s * (i / Math.max(1, answer.steps.length - 1));
  // The first frame: every answer has its first token.
  const first = () => Math.max(...panes.map(pane => pane.answer.prefill_s));
  const longest = () => Math.max(...panes.map(pane => total(pane.answer)));

  function draw() {
    for (const pane of panes) {
      const { answer } = pane, text = chosen().texts[answer.text];
      const count = answer.steps.filter((_, i) => endOf(answer, i) <= time + 1e-9).length;
      if (count < pane.shown) pane.text.textContent = pane.shown = "";
      for (let i = pane.shown || 0; i < count; i++) {
        const start = i ? answer.steps[i - 1][1] : 0, [kept, end] = answer.steps[i];
        const span = make("span", pane.text, "", "step");
        if (kept > start && answer.exact) make("mark", span, text.slice(start, kept));
        span.append(text.slice(answer.exact ? Math.max(start, kept) : start, end));
      }
      pane.shown = count;
      pane.text.scrollTop = pane.text.scrollHeight;
      const isDone = count === answer.steps.length, steps = answer.steps.length - 1;
      pane.state.textContent = isDone
        ? `${answer.tokens} tokens${answer.counted ? ` in ${steps} ${steps === 1 ? "step" : "steps"}` : ""}, ` +
          `${total(answer).toFixed(2)} s: ${(answer.tokens / total(answer)).toFixed(1)} tokens/s`
        : `step ${Math.max(0, count - 1)} of ${steps}`;
    }
    slider.max = longest();
    slider.value = time;
    const isOver = time >= longest();
    if (isOver) last = null;
    play.textContent = last === null ? "Play" : "Pause";
    step.disabled = isOver;
  }

  function frame(now) {
    if (last === null) return;
    const rate = Number(pace.value) || longest() / 6;
    time = Math.min(longest(), time + ((now - last) / 1000) * rate);
    last = now;
    draw();
    if (last !== null) requestAnimationFrame(frame);
  }

  function choose() {
    for (const pane of panes) {
      pane.answer = chosen().answers[pane.method.value];
      pane.text.textContent = pane.shown = "";
    }
    root.querySelector(".inexact").hidden = panes.every(pane => pane.answer.exact);
    time = first();
    last = null;
    draw();
  }

  function fill() {
    const { answers } = chosen();
    const first = Math.max(0, answers.findIndex(({ method }) => method === "Vanilla"));
    const fastest = answers.map((_, i) => i).filter(i => i !== first);
    fastest.sort((a, b) => total(answers[a]) - total(answers[b]));
    const wanted = [first, ...fastest];
    panes.forEach((pane, place) => {
      pane.method.textContent = "";
      answers.forEach((answer, i) => { make("option", pane.method, answer.method).value = i; });
      pane.method.value = wanted[Math.min(place, wanted.length - 1)];
    });
    const prompt = root.querySelector(".prompt");
    prompt.hidden = !chosen().prompt;
    prompt.querySelector("p").textContent = chosen().prompt;
    choose();
  }

  samples.forEach(({ title }, i) => { make("option", sample, title).value = i; });
  sample.onchange = fill;
  for (const pane of panes) pane.method.onchange = choose;
  play.onclick = () => {
    if (last === null) {
      if (time >= longest() || time === first()) time = 0;
      last = performance.now();
      draw();
      requestAnimationFrame(frame);
    } else {
      last = null;
      draw();
    }
  };
  step.onclick = () => {
    last = null;
    const ahead = panes.flatMap(({ answer }) => answer.steps.map((_, i) => endOf(answer, i)));
    time = Math.min(...ahead.filter(end => end > time + 1e-9));
    draw();
  };
  restart.onclick = choose;
  slider.oninput = () => { last = null; time = Number(slider.value); draw(); };
  fill();
  root.hidden = false;
})();
