// The map on a canvas: points in a plane that is panned, zoomed and lassoed with a mouse, fingers or keys.
"use strict";
Page.MapView = class {
  // options: {onpick(video), onhover(video, x, y), onlasso(videos, add)}
  constructor(canvas, options) {
    Object.assign(this, { canvas, options, x: [], y: [], color: null, palette: ["#888888"], view: { scale: 1, left: 0, top: 0 } });
    Object.assign(this, { query: null, results: [], selection: new Set(), pointed: null, lasso: null, lassoing: false, pointers: new Map() });
    this.context = canvas.getContext("2d");
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), event.offsetX, event.offsetY); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event, name === "pointerup"));
    canvas.addEventListener("pointerleave", () => this.options.onhover(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => { this.keyed = name === "focus" && canvas.matches(":focus-visible"); this.draw(); });
    canvas.addEventListener("dblclick", (event) => this.zoom(2, event.offsetX, event.offsetY));
    this.resize();
  }

  setPoints(x, y) {
    Object.assign(this, { x, y });
    this.there = x.map((value, video) => video).filter((video) => x[video] >= 0);
    this.fit();
  }

  resize() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    if (!box.width || (this.width === box.width && this.height === box.height)) return;
    const first = !this.width;
    [this.width, this.height] = [box.width, box.height];
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    this.ratio = ratio;
    if (first || !this.moved) this.fit();
    this.draw();
  }

  fit() {
    const edge = 26, extent = 4095;
    const scale = Math.max(0.01, Math.min(this.width || 1, this.height || 1) - 2 * edge) / extent;
    this.view = { scale, left: ((this.width || 1) - scale * extent) / 2, top: ((this.height || 1) - scale * extent) / 2 };
    Object.assign(this, { fitted: scale, moved: false });
    this.draw();
  }

  place(video) {
    const { scale, left, top } = this.view;
    return [left + scale * this.x[video], top + scale * (4095 - this.y[video])];
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const { scale, left, top } = this.view;
    const next = Math.min(60 * this.fitted, Math.max(0.5 * this.fitted, scale * factor));
    this.view = { scale: next, left: x - ((x - left) * next) / scale, top: y - ((y - top) * next) / scale };
    this.moved = true;
    this.draw();
  }

  pan(dx, dy) {
    this.view = { ...this.view, left: this.view.left + dx, top: this.view.top + dy };
    this.moved = true;
    this.draw();
  }

  // Bring a video into view if it is outside.
  reveal(video) {
    if (!(this.x[video] >= 0)) return;
    const [x, y] = this.place(video);
    if (x < 10 || y < 10 || x > this.width - 10 || y > this.height - 10) this.pan(this.width / 2 - x, this.height / 2 - y);
  }

  nearest(x, y, within = 14) {
    let [best, least] = [null, within * within];
    for (const video of this.there || []) {
      const [px, py] = this.place(video);
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [best, least] = [video, distance];
    }
    return best;
  }

  visible() {
    return (this.there || []).filter((video) => { const [x, y] = this.place(video); return x >= 0 && y >= 0 && x <= this.width && y <= this.height; });
  }

  inside(polygon) {
    const [xs, ys] = [polygon.map((point) => point[0]), polygon.map((point) => point[1])];
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    return (this.there || []).filter((video) => {
      const [x, y] = this.place(video);
      if (x < left || x > right || y < top || y > bottom) return false;
      let within = false;
      for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
        const [[ax, ay], [bx, by]] = [polygon[i], polygon[j]];
        if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) within = !within;
      }
      return within;
    });
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.start = [event.offsetX, event.offsetY];
    this.dragged = false;
    if (this.pointers.size === 1 && (event.shiftKey || this.lassoing)) this.lasso = [[event.offsetX, event.offsetY]];
    this.options.onhover(null);
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    const now = [event.offsetX, event.offsetY];
    if (!before) { this.options.onhover(this.nearest(...now), ...now); return; }
    if (Math.hypot(now[0] - this.start[0], now[1] - this.start[1]) > 4) this.dragged = true;
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const length = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      this.zoom(length(now) / length(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      this.lasso = null;
    } else if (this.lasso) { this.lasso.push(now); this.draw(); }
    else if (this.dragged) this.pan(now[0] - before[0], now[1] - before[1]);
    this.pointers.set(event.pointerId, now);
  }

  up(event, done) {
    if (!this.pointers.delete(event.pointerId)) return;
    const lasso = this.lasso;
    this.lasso = null;
    if (!done) return;
    if (lasso && lasso.length > 2 && this.dragged) this.options.onlasso(this.inside(lasso), event.ctrlKey || event.metaKey);
    else if (!this.dragged) {
      const video = this.nearest(event.offsetX, event.offsetY);
      if (video !== null) this.options.onpick(video);
    }
    this.draw();
  }

  key(event) {
    const steps = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const center = () => this.nearest(this.width / 2, this.height / 2, 60);
    const keys = {
      "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4), 0: () => this.fit(),
      a: () => this.options.onlasso(this.visible(), false),
      Enter: () => { if (center() !== null) this.options.onpick(center()); },
      x: () => { if (center() !== null) this.options.onlasso([center()], true); },
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (steps[event.key]) this.pan(...steps[event.key]);
    else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
    event.stopPropagation();
    this.keyed = true;
    this.options.onhover(center(), this.width / 2, this.height / 2);
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = null; this.paint(); });
  }

  // Dots as pixels of a bitmap: 10,000 of them take a few milliseconds, as calls of a canvas ten times as long.
  paintPoints(radius, opacity) {
    const { width, height } = this.canvas;
    if (this.bitmap?.width !== width || this.bitmap?.height !== height) this.bitmap = new ImageData(width, height);
    const pixels = new Uint32Array(this.bitmap.data.buffer);
    pixels.fill(0);
    const size = radius * this.ratio, reach = Math.ceil(size);
    const disk = []; // [column, row, alpha]
    for (let row = -reach; row <= reach; row++) for (let column = -reach; column <= reach; column++) {
      const alpha = Math.round(255 * opacity * Math.max(0, Math.min(1, size + 0.5 - Math.hypot(column, row))));
      if (alpha) disk.push(column, row, alpha);
    }
    const colors = this.palette.map((color) => {
      const [red, green, blue] = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16));
      return (blue << 16) | (green << 8) | red;
    });
    const { scale, left, top } = this.view;
    for (const video of this.there || []) {
      const x = Math.round((left + scale * this.x[video]) * this.ratio), y = Math.round((top + scale * (4095 - this.y[video])) * this.ratio);
      if (x < -reach || y < -reach || x >= width + reach || y >= height + reach) continue;
      const color = colors[this.color ? this.color[video] : 0];
      for (let i = 0; i < disk.length; i += 3) {
        const column = x + disk[i], row = y + disk[i + 1];
        if (column < 0 || row < 0 || column >= width || row >= height) continue;
        const at = row * width + column;
        if (pixels[at] >>> 24 <= disk[i + 2]) pixels[at] = ((disk[i + 2] << 24) | color) >>> 0;
      }
    }
    this.context.putImageData(this.bitmap, 0, 0);
  }

  paint() {
    const { context, ratio, width, height } = this;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const count = this.there?.length || 0;
    const radius = Math.round((count > 4000 ? 2.2 : count > 800 ? 3 : 4.2) * Math.min(2, Math.max(1, (this.view.scale / this.fitted) ** 0.3)) * 4) / 4;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.paintPoints(radius, this.query !== null || this.results.length ? 0.55 : 0.85);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const ring = (videos, size, stroke, fill) => {
      context.beginPath();
      for (const video of videos) {
        if (!(this.x[video] >= 0)) continue;
        const [x, y] = this.place(video);
        if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
        context.moveTo(x + size, y);
        context.arc(x, y, size, 0, 7);
      }
      if (fill) { context.fillStyle = fill; context.fill(); }
      context.strokeStyle = stroke;
      context.lineWidth = 2;
      context.stroke();
    };
    ring(this.selection, radius + 3.5, color("accent"));
    for (const video of this.results) ring([video], radius + 1.5, color("text"), this.palette[this.color ? this.color[video] : 0]);
    if (this.query !== null) ring([this.query], radius + 4.5, color("card"), color("wrong"));
    if (this.pointed !== null) ring([this.pointed], radius + 7, color("text"));
    if (this.lasso) this.paintLasso(color("accent"));
    if (this.keyed) {
      context.strokeStyle = color("text");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(width / 2 - 8, height / 2); context.lineTo(width / 2 + 8, height / 2);
      context.moveTo(width / 2, height / 2 - 8); context.lineTo(width / 2, height / 2 + 8);
      context.stroke();
    }
  }

  paintLasso(color) {
    const { context } = this;
    context.beginPath();
    this.lasso.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.globalAlpha = 0.12;
    context.fillStyle = color;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = color;
    context.lineWidth = 1.5;
    context.stroke();
  }
};
