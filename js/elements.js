/** Create an HTML element. `className` and `dataset` are set as DOM properties, all other entries as attributes. */
export function make(tag, properties = {}, ...children) {
  const { className, dataset, ...attributes } = properties;
  const element = document.createElement(tag);
  if (className) element.className = className;
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set the text of an element if it has changed. Setting an equal text would make the browser lay out the page. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
