/** The map on a page of ComfyUI's canvas that is too far away to read: a picture on that canvas. It is drawn once, where each frame of a
 * moving page would lay out an element anew. */

import { app } from "../../scripts/app.js";
import { draw, layout } from "./map_view.js";

const SCALE = 0.6; // of the page, below which ComfyUI shows no words and no elements

export class FromAfar {
  #picture = null; // of what the panel shows; null once it shows something else

  /** @param {object} widget the one that `addDOMWidget` returned; its option `hideOnZoom` is true */
  constructor(node, widget, panel) {
    Object.assign(this, { node, widget, panel });
    widget.options.onDraw = () => this.#draw();
  }

  /** The panel shows something else. */
  forget() {
    this.#picture = null;
    if (app.canvas?.low_quality) this.node.setDirtyCanvas?.(true, true);
  }

  /** Over the box that ComfyUI draws in place of the element. */
  #draw() {
    const { node, widget, panel } = this;
    if (!app.canvas.low_quality || widget.hidden || !panel.run) return;
    const { margin } = widget;
    const [width, height] = [node.size[0] - 2 * margin, (widget.computedHeight ?? 0) - 2 * margin];
    if (width <= 0 || height <= 0) return;
    if (this.#picture?.width !== width || this.#picture.height !== height) this.#picture = { width, height, canvas: this.#paint(width, height) };
    app.canvas.ctx.drawImage(this.#picture.canvas, margin, widget.y + margin, width, height);
  }

  #paint(width, height) {
    const { panel } = this;
    const pixels = SCALE * devicePixelRatio;
    const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * pixels)), Math.max(1, Math.round(height * pixels)));
    const context = canvas.getContext("2d");
    context.setTransform(pixels, 0, 0, pixels, 0, 0);
    draw(context, { width, height }, panel.panesIn(layout(width, height, panel.run.rows, panel.run.columns, panel.runs.length)));
    return canvas;
  }
}
