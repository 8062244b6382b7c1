// Work that may wait: done in small pieces between events, so that a slider never has to.

const MILLISECONDS_AT_ONCE = 10;

export class Background {
  constructor() {
    this.jobs = new Map();
    this.waiting = false;
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.work();
  }

  /**
   * Ask for work by name; the same name again replaces what was left of it.
   * @param {() => boolean} piece does one piece and says whether more is left
   */
  ask(name, piece) {
    this.jobs.set(name, piece);
    if (!this.waiting) {
      this.waiting = true;
      this.channel.port2.postMessage(null);
    }
  }

  work() {
    const end = performance.now() + MILLISECONDS_AT_ONCE;
    while (this.jobs.size && performance.now() < end) {
      const [name, piece] = this.jobs.entries().next().value;
      if (!piece() && this.jobs.get(name) === piece) this.jobs.delete(name);
    }
    this.waiting = this.jobs.size > 0;
    if (this.waiting) this.channel.port2.postMessage(null);
  }
}
