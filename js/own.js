/**
 * The value of an object's own property, or undefined. Names from workflows, files and messages must be looked up with
 * this function, because every object has inherited properties, such as "constructor" and "__proto__".
 */
export function own(object, name) {
  return object && Object.hasOwn(object, name) ? object[name] : undefined;
}
