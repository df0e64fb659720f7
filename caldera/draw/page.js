// The button for light and dark, and moving about in the graph. A page can be read without it.
'use strict';
(() => {
  const root = document.documentElement;
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const button = document.getElementById('theme');
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  const label = () => { button.textContent = isDark() ? 'Light' : 'Dark'; };
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    label();
  });
  dark.addEventListener('change', label);
  button.hidden = false;
  label();

  const svg = document.querySelector('.graph svg');
  if (!svg) return;
  const copy = (box) => ({ x: box.x, y: box.y, width: box.width, height: box.height });
  const all = copy(svg.viewBox.baseVal);
  let view = copy(all);
  const show = () => svg.setAttribute('viewBox',
    [view.x, view.y, view.width, view.height].map(n => n.toFixed(1)).join(' '));
  const fit = (box) => { view = copy(box); show(); };
  const scale = () => Math.min(svg.clientWidth / view.width, svg.clientHeight / view.height);
  const zoom = (factor, x, y) => {
    const width = Math.min(all.width * 2, Math.max(120, view.width * factor));
    const done = width / view.width;
    view = { x: x - (x - view.x) * done, y: y - (y - view.y) * done,
             width, height: view.height * done };
    show();
  };
  const place = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY);
    return point.matrixTransform(svg.getScreenCTM().inverse());
  };
  const tools = document.querySelector('.tools');
  const panels = [...svg.querySelectorAll('g.panel')];
  const names = [...tools.querySelectorAll('[data-panel]')];
  const open = (number) => {
    const panel = panels[number];
    fit(panel ? panel.getBBox() : all);
    for (const name of names)
      name.setAttribute('aria-pressed', String(Number(name.dataset.panel) === number));
  };
  for (const name of names)
    name.addEventListener('click', () => open(Number(name.dataset.panel)));
  tools.querySelector('[data-zoom=in]').addEventListener('click', () =>
    zoom(0.7, view.x + view.width / 2, view.y + view.height / 2));
  tools.querySelector('[data-zoom=out]').addEventListener('click', () =>
    zoom(1 / 0.7, view.x + view.width / 2, view.y + view.height / 2));
  tools.hidden = false;
  const frame = svg.parentElement;
  if (frame.dataset.open) {
    open(Number(frame.dataset.open));
    // What is too large to be read as a whole is seen from its beginning.
    if (scale() < 0.5) zoom(scale() / 0.5, view.x + view.width / 2, view.y);
  }
  frame.addEventListener('keydown', (event) => {
    const middle = [view.x + view.width / 2, view.y + view.height / 2];
    const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in moves) {
      const [dx, dy] = moves[event.key];
      view = { ...view, x: view.x + dx * view.width, y: view.y + dy * view.height };
      show();
    } else if (event.key === '+') zoom(0.7, ...middle);
    else if (event.key === '-') zoom(1 / 0.7, ...middle);
    else return;
    event.preventDefault();
  });
  svg.addEventListener('wheel', (event) => {
    // The wheel alone moves the page: only with Ctrl, or pinching, it is about the graph.
    if (!event.ctrlKey) return;
    event.preventDefault();
    const at = place(event);
    zoom(Math.exp(event.deltaY * 0.01), at.x, at.y);
  }, { passive: false });
  let from = null;
  svg.addEventListener('pointerdown', (event) => {
    from = { x: event.clientX, y: event.clientY, view: copy(view), scale: scale() };
  });
  svg.addEventListener('pointermove', (event) => {
    if (!from) return;
    const dx = event.clientX - from.x, dy = event.clientY - from.y;
    // A hand that shakes still clicks a link.
    if (!svg.classList.contains('moving') && Math.hypot(dx, dy) < 4) return;
    if (!svg.classList.contains('moving')) svg.setPointerCapture(event.pointerId);
    svg.classList.add('moving');
    view = { ...from.view, x: from.view.x - dx / from.scale, y: from.view.y - dy / from.scale };
    show();
  });
  for (const end of ['pointerup', 'pointercancel']) {
    svg.addEventListener(end, () => { from = null; svg.classList.remove('moving'); });
  }
  svg.addEventListener('dblclick', (event) => { const at = place(event); zoom(0.5, at.x, at.y); });
  addEventListener('hashchange', () => {
    const mark = document.getElementById(location.hash.slice(1));
    if (!mark || !svg.contains(mark)) return;
    const box = mark.getBBox();
    view = { ...view, x: box.x + box.width / 2 - view.width / 2,
             y: box.y + box.height / 2 - view.height / 2 };
    show();
  });
})();
