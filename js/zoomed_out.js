/**
 * Acceptance map on a canvas that is zoomed out so far that ComfyUI hides HTML elements. This file draws the map once
 * as an image, and then only copies the image to the canvas. An HTML element would need a layout in every frame while
 * the user pans. In Nodes 2.0, elements stay visible, and the map fills its panel (acceptance_map.css).
 */

import { boxOf, canvasContext, isZoomedOut, onPlaceholder, redrawNode } from "./comfy.js";
import { draw } from "./map_view.js";

const SCALE = 0.6; // zoom of the canvas; at a smaller zoom, ComfyUI hides elements

export class ZoomedOutMap {
  #image = null; // { width, height, canvas }; null after the panel has changed

  /** @param {import("./comfy.js").Widget} widget widget of the panel's element */
  constructor(node, widget, panel) {
    this.node = node;
    this.widget = widget;
    this.panel = panel;
    onPlaceholder(widget, () => this.#draw());
  }

  /** Draw the map again, because the panel has changed. */
  invalidate() {
    this.#image = null;
    if (isZoomedOut()) redrawNode(this.node);
  }

  #draw() {
    if (!isZoomedOut() || this.widget.hidden || !this.panel.run) return;
    const { x, y, width, height } = boxOf(this.node, this.widget);
    if (width <= 0 || height <= 0) return;
    if (this.#image?.width !== width || this.#image.height !== height) {
      this.#image = { width, height, canvas: this.#render(width, height) };
    }
    canvasContext().drawImage(this.#image.canvas, x, y, width, height);
  }

  #render(width, height) {
    const pixels = SCALE * devicePixelRatio;
    const [w, h] = [width, height].map((side) => Math.max(1, Math.round(side * pixels)));
    const canvas = new OffscreenCanvas(w, h);
    const context = canvas.getContext("2d");
    context.setTransform(pixels, 0, 0, pixels, 0, 0);
    draw(context, { width, height }, this.panel.panesIn(this.panel.boxes(width, height)));
    return canvas;
  }
}
