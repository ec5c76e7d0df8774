/** Makes an element: `className` and `dataset` are properties of it, everything else attributes. */
export function make(tag, properties = {}, ...children) {
  const { className, dataset, ...attributes } = properties;
  const element = document.createElement(tag);
  if (className) element.className = className;
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
