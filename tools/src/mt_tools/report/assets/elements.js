"use strict";
/* Makes elements of a page: `node` those of HTML with their properties, `shape` those of SVG with their attributes. */
const elements = {
  node: (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  },
  shape: (name, attributes = {}, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  },
};
