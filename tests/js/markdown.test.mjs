// Tests of markdown.js, with a document that records the elements.
import assert from "node:assert/strict";
import test from "node:test";

class Element {
  constructor(tag) {
    Object.assign(this, { tag, dataset: {}, children: [] });
  }
  setAttribute() {}
  append(...children) {
    this.children.push(...children.filter((child) => child !== ""));
  }
  toString() {
    return `<${this.tag}>${this.children.join("")}</${this.tag}>`;
  }
}
globalThis.document = { createElement: (tag) => new Element(tag) };
const { render } = await import("../../js/markdown.js");

test("a report becomes headings, paragraphs, tables, lists and code", () => {
  const text = "**Yes.** Use `Auto`.\n\n## Speed\n| a | b |\n|---|---|\n| 1 | 2 |\n- one\n- two\n\n```\n| raw |\n```";
  assert.equal(
    render(text).join("\n"),
    [
      "<p><strong>Yes.</strong> Use <code>Auto</code>.</p>",
      "<h3>Speed</h3>",
      "<div><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></div>",
      "<ul><li>one</li><li>two</li></ul>",
      "<pre>| raw |</pre>",
    ].join("\n"),
  );
});

test("markup of a model's name stays text", () => {
  const [paragraph] = render("<img src=x onerror=alert(1)>");
  assert.deepEqual(paragraph.children, ["<img src=x onerror=alert(1)>"]);
});
