// One loop asks for what is on the page, a second after the last answer; while nobody can see the page it rests, and
// after a failure it waits longer.

const SECONDS = 1;
const SECONDS_MAX = 5;

export class Poller {
  /** `round`: an async function; `failed` is told its errors, and whether another try follows is its answer. */
  constructor(round, failed) {
    this.round = round;
    this.failed = failed;
    this.failures = 0;
    this.timer = null;
    this.under_way = false;
    this.again = false;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.timer);
      else this.now();
    });
  }

  /** Ask at once; if a round is under way, once more behind it. */
  async now() {
    clearTimeout(this.timer);
    if (this.under_way) {
      this.again = true;
      return;
    }
    this.under_way = true;
    let goes_on = true;
    try {
      await this.round();
      this.failures = 0;
    } catch (error) {
      this.failures += 1;
      goes_on = this.failed(error);  // never raises: one mistake would end the polling, and the page would look up to date
    } finally {
      this.under_way = false;
    }
    if (this.again) {
      this.again = false;
      this.now();
    } else if (goes_on && !document.hidden) {
      const seconds = Math.min(SECONDS * 2 ** Math.max(0, this.failures - 1), SECONDS_MAX);
      this.timer = setTimeout(() => this.now(), seconds * 1000);
    }
  }

  stop() {
    clearTimeout(this.timer);
  }
}
