/**
 * Points in space and a camera that goes around them: where each is on the screen, and which is under the pointer.
 *
 * Coordinates are in columns (`x`, `y`, `z`), so that thirty thousand of them cost one pass and no object each.
 */

const NEAR = 0.05;

export class Camera {
  constructor() {
    this.yaw = -0.6;
    this.pitch = 0.35;
    this.distance = 10;
    this.target = [0, 0, 0];
  }

  /** @param {number} dx @param {number} dy in radians */
  orbit(dx, dy) {
    this.yaw += dx;
    this.pitch = Math.max(-1.55, Math.min(1.55, this.pitch + dy));
  }

  /** @param {number} factor above 1: away */
  zoom(factor) {
    this.distance = Math.max(0.5, Math.min(1e5, this.distance * factor));
  }

  /** Move what is looked at in the plane of the screen. @param {number} dx @param {number} dy in screens */
  pan(dx, dy) {
    const { right, up } = this.axes();
    for (let i = 0; i < 3; i += 1) this.target[i] += (up[i] * dy - right[i] * dx) * this.distance;
  }

  axes() {
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    return { right: [cy, 0, -sy], up: [-sy * sp, cp, -cy * sp], back: [sy * cp, sp, cy * cp] };
  }
}

/**
 * @typedef {object} Cloud
 * @property {Float32Array} x
 * @property {Float32Array} y
 * @property {Float32Array} z
 */

export class Screen {
  /** @param {number} count of points */
  constructor(count) {
    this.x = new Float32Array(count);
    this.y = new Float32Array(count);
    /** How large one unit is at the point, in pixels; 0 where it is behind the camera. */
    this.scale = new Float32Array(count);
  }

  /** @param {Cloud} cloud @param {Camera} camera @param {number} width @param {number} height in pixels */
  project(cloud, camera, width, height) {
    const { right, up, back } = camera.axes();
    const [tx, ty, tz] = camera.target;
    const focus = Math.min(width, height) * 1.1;
    for (let i = 0; i < this.x.length; i += 1) {
      const px = cloud.x[i] - tx;
      const py = cloud.y[i] - ty;
      const pz = cloud.z[i] - tz;
      const depth = camera.distance - (px * back[0] + py * back[1] + pz * back[2]);
      if (depth < NEAR) {
        this.scale[i] = 0;
        continue;
      }
      const scale = focus / depth;
      this.scale[i] = scale;
      this.x[i] = width / 2 + (px * right[0] + py * right[1] + pz * right[2]) * scale;
      this.y[i] = height / 2 - (px * up[0] + py * up[1] + pz * up[2]) * scale;
    }
  }

  /** The point that is nearest to a place on the screen. @param {number} x @param {number} y
   * @param {Uint8Array} seen 1 for points that are shown @param {number} reach in pixels @returns {number} -1: none */
  at(x, y, seen, reach) {
    let found = -1;
    let best = reach * reach;
    for (let i = 0; i < this.x.length; i += 1) {
      if (!seen[i] || this.scale[i] === 0) continue;
      const away = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (away < best) {
        best = away;
        found = i;
      }
    }
    return found;
  }
}

/** Look at the middle of what is shown, from far enough to see it all.
 * @param {Camera} camera @param {Cloud} cloud @param {Uint8Array} seen */
export function frame(camera, cloud, seen) {
  const least = [Infinity, Infinity, Infinity];
  const most = [-Infinity, -Infinity, -Infinity];
  for (let i = 0; i < seen.length; i += 1) {
    if (!seen[i]) continue;
    [cloud.x[i], cloud.y[i], cloud.z[i]].forEach((value, axis) => {
      least[axis] = Math.min(least[axis], value);
      most[axis] = Math.max(most[axis], value);
    });
  }
  if (least[0] > most[0]) return;
  camera.target = least.map((value, axis) => (value + most[axis]) / 2);
  camera.distance = 1.15 * Math.hypot(...most.map((value, axis) => value - least[axis])) || 5;
}
