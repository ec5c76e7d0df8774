/** Create an element. `className` and `dataset` are set as properties, all other names as attributes. */
export function make(tag, properties = {}, ...children) {
  const { className, dataset, ...attributes } = properties;
  const element = document.createElement(tag);
  if (className) element.className = className;
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set the text of an element if it differs. An assignment of an equal text would cost the page a layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
