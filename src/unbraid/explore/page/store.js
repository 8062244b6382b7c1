// The page's one state, with its past: everything that changes is here, and whoever shows it listens.

const MAX_STEPS_BACK = 200;

export class Store {
  /** @param {object} initial a plain object; it is replaced, never changed */
  constructor(initial) {
    this.initial = initial;
    this.state = initial;
    this.past = [];
    this.future = [];
    this.listeners = [];
    this.gesture = null;
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  /**
   * Change some of the state.
   * @param {object} change
   * @param {string|null} gesture changes of the same gesture (one slider's movement) are one step back
   */
  set(change, gesture = null) {
    const before = this.state;
    if (gesture === null || gesture !== this.gesture) {
      this.past.push(before);
      if (this.past.length > MAX_STEPS_BACK) this.past.shift();
    }
    this.gesture = gesture;
    this.future = [];
    this.replace({ ...before, ...change });
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.state);
    this.gesture = null;
    this.replace(this.past.pop());
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.state);
    this.gesture = null;
    this.replace(this.future.pop());
  }

  replace(state) {
    const before = this.state;
    this.state = state;
    for (const listener of this.listeners) listener(state, before);
  }
}
