/** Advanced inputs in the canvas: out of sight, and without empty room for them, until they are asked for. */

export function foldAdvanced(node) {
  for (const widget of node.widgets) widget.advanced = widget.options?.advanced; // Nodes 2.0 reads it of the options, the canvas here
  const laidOut = node.getLayoutWidgets;
  node.getLayoutWidgets = () => [...(laidOut?.call(node) ?? node.widgets)].filter((one) => !one.advanced || node.showAdvanced);
}
