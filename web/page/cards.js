/** @import { Drawing } from "./circuit.js" */

const ROW = 8;

/** Where each node stands: a layer is a card, its nodes in the order in which they are computed, layers in rows.
 * @param {Drawing} drawing */
export function placed(drawing) {
  const { nodes, edges } = drawing;
  const count = nodes.names.length;
  const [x, y, z] = [new Float32Array(count), new Float32Array(count), new Float32Array(count)];
  const rank = new Int32Array(count);
  for (let i = 0; i < edges.start.length; i += 1) {
    const [start, end] = [edges.start[i], edges.end[i]];
    if (nodes.block[start] === nodes.block[end]) rank[end] = Math.max(rank[end], rank[start] + 1);
  }
  const layers = drawing.blocks.length;
  const row = layers <= ROW ? layers : Math.ceil(Math.sqrt(layers * 2.5));
  const beside = new Map();
  const tall = rank.reduce((most, one) => Math.max(most, one), 0);
  const last = Math.max(layers - 1, 0);
  const first = nodes.block.findIndex((block) => block >= 0);
  for (let i = 0; i < count; i += 1) {
    const outside = nodes.block[i] < 0;
    // what comes before the layers stands before them, the rest behind
    const before = outside && i < first;
    const layer = outside ? (before ? 0 : last) : nodes.block[i];
    const place = `${outside ? (before ? "a" : "z") : layer}/${rank[i]}`;
    const nth = beside.get(place) ?? 0;
    beside.set(place, nth + 1);
    const line = Math.floor(layer / row);
    const along = layer - line * row;
    x[i] = (line % 2 ? row - 1 - along : along) * 4 + (outside ? (before ? -4 : 4) : 0);
    y[i] = rank[i] - tall / 2;
    z[i] = line * 10 + (nth % 2 ? -1 : 1) * Math.ceil(nth / 2) * 1.4;
  }
  return { x, y, z };
}
