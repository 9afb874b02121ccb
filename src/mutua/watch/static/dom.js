// Elements. Texts come from run folders, which anybody may have written: they are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name === "text") {
      node.textContent = value;
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Set a text only if it is another one: a screen reader then has nothing to say, and the browser nothing to do.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function set(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

// Keep one element per key: those that are there are changed, others are made, the rest is removed.
export function keyed(parent, items, keyOf, make, change) {
  const known = new Map();
  for (const child of parent.children) known.set(child.keyedBy, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = known.get(key);
    if (node === undefined) {
      node = make(item);
      node.keyedBy = key;
    }
    known.delete(key);
    change(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const node of known.values()) node.remove();
}

export function card(title, id, ...children) {
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id, text: title }), ...children);
}

// Tables that are too wide scroll by themselves, also by keyboard.
export function scroller(label, ...children) {
  return h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, ...children);
}
