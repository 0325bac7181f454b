// Values under the pointer. Without this script the page shows everything but them.
for (const plot of document.querySelectorAll('.plot')) {
  const { last, unit, series } = JSON.parse(plot.querySelector('script').textContent);
  const area = plot.querySelector('.area');
  const make = (parent, tag, name) => {
    const element = parent.appendChild(document.createElement(tag));
    element.className = name;
    return element;
  };
  const cursor = make(area, 'div', 'cursor'), tip = make(area, 'div', 'tip');
  const dots = series.map(s => make(cursor, 'i', s.class));
  const show = on => { cursor.hidden = tip.hidden = !on; };
  const nearest = (xs, x) => {
    let best = 0;
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  };
  show(false);
  area.addEventListener('pointermove', event => {
    const box = area.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * last;
    const longest = series.reduce((a, b) => b.x.length > a.x.length ? b : a);
    const step = longest.x[nearest(longest.x, at)];
    tip.replaceChildren();
    make(tip, 'b', '').textContent = unit + ' ' + step;
    series.forEach((s, i) => {
      const j = nearest(s.x, step), here = s.x.length === longest.x.length || s.x[j] === step;
      dots[i].hidden = !here;
      dots[i].style.top = 100 * (1 - s.y[j]) + '%';
      const where = here ? '' : ' (' + unit + ' ' + s.x[j] + ')';
      make(tip, 'div', 'key ' + s.class).textContent = (series.length > 1 ? s.name + ' ' : '') + s.text[j] + where;
    });
    const left = step / last * box.width;
    cursor.style.left = left + 'px';
    show(true);
    const right = left > box.width / 2;
    tip.style.left = right ? '' : left + 12 + 'px';
    tip.style.right = right ? box.width - left + 12 + 'px' : '';
  });
  area.addEventListener('pointerleave', () => show(false));
}
