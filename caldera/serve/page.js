// Sends what was typed, drawn or chosen to /predict, and shows what comes back.
'use strict';
(() => {
  const find = (id) => document.getElementById(id);
  const { kind, shape } = JSON.parse(find('contract').textContent);
  const said = find('said'), bars = find('bars'), seen = find('seen');
  find('curl').textContent = find('curl').textContent.replaceAll('ADDRESS', location.origin);

  // --- answers

  let asked = 0;
  const ask = async (type, body) => {
    const mine = ++asked;
    let answer, found;
    try {
      answer = await fetch('predict', { method: 'POST', headers: { 'content-type': type }, body });
      found = await answer.json();
    } catch {
      return show(mine, 'The service does not answer. Does it still run?');
    }
    if (!answer.ok) return show(mine, found.error);
    return show(mine, '', found.predictions[0], found.notes);
  };
  const show = (mine, wrong, found, notes = []) => {
    // An answer that was overtaken by a later one is of no interest.
    if (mine !== asked) return;
    said.classList.toggle('wrong', Boolean(wrong));
    bars.replaceChildren();
    if (wrong) { said.textContent = wrong; return; }
    const strong = document.createElement('b');
    strong.textContent = found.class ?? number(found.value ?? found.values);
    if (found.low !== undefined) strong.textContent += ` (${number(found.low)} to ${number(found.high)})`;
    said.replaceChildren(strong, ...notes.map((note) => `; ${note}`));
    for (const [name, part] of Object.entries(found.probabilities ?? {})
      .sort((a, b) => b[1] - a[1]).slice(0, 10)) bars.append(bar(name, part));
  };
  // float32 has seven digits; more would promise what is not there.
  const short = (value) => Array.isArray(value) ? value.map(short) : Number(value.toPrecision(7));
  const number = (value) => Array.isArray(value) ? JSON.stringify(short(value)) : String(short(value));
  const bar = (name, part) => {
    const row = document.createElement('div');
    row.className = 'bar';
    const label = document.createElement('span'), share = document.createElement('span');
    const line = document.createElement('progress');
    label.textContent = label.title = name;
    share.textContent = `${(100 * part).toFixed(1)} %`;
    line.max = 1;
    line.value = part;
    line.setAttribute('aria-label', name);
    row.append(label, line, share);
    return row;
  };

  // --- rows and arrays

  const form = find('form');
  const value = (text) => {
    const trimmed = text.trim();
    const found = Number(trimmed);
    return trimmed !== '' && Number.isFinite(found) ? found : trimmed;
  };
  if (form) form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (kind === 'table') {
      const row = [...form.querySelectorAll('[data-column]')].map((each) => value(each.value));
      return ask('application/json', JSON.stringify({ samples: [row] }));
    }
    if (kind === 'text') {
      return ask('application/json', JSON.stringify({ samples: [find('text').value] }));
    }
    return ask('application/json', `{"samples": [${find('array').value}]}`);
  });
  // Whatever changes is predicted at once: what if?
  let waits = 0;
  const soon = () => { clearTimeout(waits); waits = setTimeout(() => form.requestSubmit(), 80); };
  for (const slider of form ? form.querySelectorAll('input[type=range]') : []) {
    const box = find(slider.dataset.for);
    slider.addEventListener('input', () => { box.value = slider.value; soon(); });
    box.addEventListener('input', () => { if (box.value.trim()) slider.value = box.value; });
  }
  for (const select of form ? form.querySelectorAll('select') : []) {
    select.addEventListener('change', soon);
  }

  // --- images

  const file = find('file'), pad = find('pad');
  if (!file) return;
  const [, height, width] = shape;
  const shown = (image, x, y, w, h) => {
    // What the model sees, in its own size.
    seen.width = width; seen.height = height; seen.hidden = false;
    const pen = seen.getContext('2d');
    pen.imageSmoothingQuality = 'high';
    pen.fillStyle = '#000';
    pen.fillRect(0, 0, width, height);
    pen.drawImage(image, x, y, w, h);
  };
  const send = async (chosen) => {
    if (!chosen) return;
    try {
      const image = await createImageBitmap(chosen);
      shown(image, 0, 0, width, height);
    } catch { seen.hidden = true; }
    ask(chosen.type || 'image/unknown', chosen);
  };
  file.addEventListener('change', () => send(file.files[0]));
  addEventListener('dragover', (event) => event.preventDefault());
  addEventListener('drop', (event) => {
    event.preventDefault();
    send(event.dataTransfer.files[0]);
  });
  if (!pad) return;
  const pen = pad.getContext('2d', { willReadFrequently: true });
  const clear = () => {
    pen.fillStyle = '#000';
    pen.fillRect(0, 0, pad.width, pad.height);
    asked++;
    seen.hidden = true;
    said.textContent = 'No prediction yet.';
    said.classList.remove('wrong');
    bars.replaceChildren();
  };
  clear();
  find('clear').addEventListener('click', clear);
  let last = null;
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.left) * pad.width / box.width,
            (event.clientY - box.top) * pad.height / box.height];
  };
  const line = (event) => {
    const here = place(event);
    pen.strokeStyle = '#fff';
    pen.lineWidth = pad.width / 11;
    pen.lineCap = pen.lineJoin = 'round';
    pen.beginPath();
    pen.moveTo(...last);
    pen.lineTo(...here);
    pen.stroke();
    last = here;
  };
  pad.addEventListener('pointerdown', (event) => {
    last = place(event);
    pad.setPointerCapture(event.pointerId);
    line(event);
  });
  pad.addEventListener('pointermove', (event) => { if (last) line(event); });
  const bounds = () => {
    // The box around what was drawn: data sets of digits have them in the middle, and large.
    const pixels = pen.getImageData(0, 0, pad.width, pad.height).data;
    let [left, top, right, bottom] = [pad.width, pad.height, -1, -1];
    for (let y = 0; y < pad.height; y++) {
      for (let x = 0; x < pad.width; x++) {
        if (pixels[4 * (y * pad.width + x)] < 64) continue;
        left = Math.min(left, x); right = Math.max(right, x);
        top = Math.min(top, y); bottom = Math.max(bottom, y);
      }
    }
    return right < 0 ? null : [left, top, right - left + 1, bottom - top + 1];
  };
  const predict = () => {
    if (!last) return;
    last = null;
    const box = bounds();
    if (!box) return;
    const [left, top, w, h] = box;
    // Images of at least 16 pixels have a margin of a seventh, as those of MNIST do.
    const margin = Math.min(width, height) < 16 ? 0 : Math.min(width, height) / 7;
    const scale = Math.min((width - 2 * margin) / w, (height - 2 * margin) / h);
    // In steps of at most a half: smaller ones at once would leave out most of the pixels.
    let image = document.createElement('canvas');
    image.width = w; image.height = h;
    image.getContext('2d').drawImage(pad, left, top, w, h, 0, 0, w, h);
    while (image.width > 2 * w * scale) {
      const half = document.createElement('canvas');
      half.width = Math.ceil(image.width / 2); half.height = Math.ceil(image.height / 2);
      half.getContext('2d').drawImage(image, 0, 0, half.width, half.height);
      image = half;
    }
    const [sw, sh] = [w * scale, h * scale];
    shown(image, (width - sw) / 2, (height - sh) / 2, sw, sh);
    seen.toBlob((blob) => ask('image/png', blob), 'image/png');
  };
  for (const end of ['pointerup', 'pointercancel']) pad.addEventListener(end, predict);
})();
