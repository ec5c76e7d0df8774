/** Lets a DOM widget leave to ComfyUI's canvas what is the canvas's: zooming by wheel and panning with the middle button. */

/** In Nodes 2.0 such events reach the canvas by themselves; there a press on a control must not start to drag the node. */
export function forwardWheelAndPan(element, app) {
  const vue = () => Boolean(element.closest("[data-node-id]"));
  element.addEventListener("wheel", (event) => vue() || scrolls(event) || app.canvas.processMouseWheel(event));
  const middle = { pointerdown: "processMouseDown", pointermove: "processMouseMove", pointerup: "processMouseUp" };
  for (const [type, handler] of Object.entries(middle)) {
    element.addEventListener(type, (event) => {
      const pressed = type === "pointermove" ? event.buttons & 4 : event.button === 1;
      if (!vue() && pressed) app.canvas[handler](event);
      if (vue() && !pressed && type === "pointerdown") event.stopPropagation();
    });
  }
}

/** Whether the wheel turns over a part of the widget that has more to show than fits. */
function scrolls({ target }) {
  const box = target.closest("[data-capture-wheel]");
  return box !== null && box.scrollHeight > box.clientHeight;
}
