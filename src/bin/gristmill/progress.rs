//! The progress bar on stderr.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use gristmill::progress::{Progress, Step, Totals};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::report::{bytes, duration, thousands};

/// A progress bar. Counting is atomic additions; the text is made when the bar is drawn, ten times a second.
pub struct Bar {
    bar: ProgressBar,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    episodes: AtomicU64,
    steps: AtomicU64,
    bytes: AtomicU64,
    /// What the bar's length counts.
    unit: AtomicU64,
}

const BYTES: u64 = 0;
const STEPS: u64 = 1;
const EPISODES: u64 = 2;
/// Nothing is known beforehand, so there is no bar and no time left.
const NONE: u64 = 3;

impl Bar {
    /// A bar if stderr is a terminal.
    pub fn on_terminal() -> Option<Self> {
        std::io::stderr().is_terminal().then(|| Self {
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)),
            counts: Arc::default(),
        })
    }

    /// Takes the bar off the screen, so that what follows is not written into it.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    fn style(&self, known: bool) -> ProgressStyle {
        let template = if known { "{msg:10} {bar:30} {percent:>3}%  {told}" } else { "{msg:10} {spinner}  {told}" };
        let counts = Arc::clone(&self.counts);
        ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─")
            .with_key("told", move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                let _ = out.write_str(&counts.told(state));
            })
    }
}

impl Counts {
    fn told(&self, state: &ProgressState) -> String {
        let seconds = state.elapsed().as_secs_f64().max(1e-3);
        let (steps, read) = (self.steps.load(Relaxed), self.bytes.load(Relaxed));
        let mut out = format!("{} episodes", thousands(self.episodes.load(Relaxed)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are positive and far below 2^63"
        )]
        let rate = |n: u64| (n as f64 / seconds) as u64;
        let _ = write!(out, ", {} steps/s", thousands(rate(steps)));
        if read > 0 {
            let _ = write!(out, ", {}/s", bytes(rate(read)));
        }
        if self.unit.load(Relaxed) != NONE && state.pos() > 0 {
            let _ = write!(out, ", {} left", duration(state.eta().as_secs_f64().ceil()));
        }
        out
    }
}

impl Progress for Bar {
    fn begin(&self, phase: &str, totals: Totals) {
        for count in [&self.counts.episodes, &self.counts.steps, &self.counts.bytes] {
            count.store(0, Relaxed);
        }
        let known = [(BYTES, totals.bytes), (STEPS, totals.steps), (EPISODES, totals.episodes)]
            .into_iter()
            .find_map(|(unit, total)| total.filter(|n| *n > 0).map(|n| (unit, n)));
        self.counts.unit.store(known.map_or(NONE, |(unit, _)| unit), Relaxed);
        // The style first: every call after it may draw.
        self.bar.set_style(self.style(known.is_some()));
        match known {
            Some((_, total)) => self.bar.set_length(total),
            None => self.bar.unset_length(),
        }
        self.bar.reset();
        self.bar.set_message(phase.to_owned());
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    fn advance(&self, done: Step) {
        self.counts.episodes.fetch_add(done.episodes, Relaxed);
        self.counts.steps.fetch_add(done.steps, Relaxed);
        self.counts.bytes.fetch_add(done.bytes, Relaxed);
        self.bar.inc(match self.counts.unit.load(Relaxed) {
            BYTES => done.bytes,
            STEPS => done.steps,
            _ => done.episodes,
        });
    }

    fn end(&self) {
        self.bar.disable_steady_tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_shown() {
        let bar = Bar { bar: ProgressBar::hidden(), counts: Arc::default() };
        for totals in [Totals::default(), Totals { bytes: Some(1000), ..Totals::default() }] {
            bar.begin("reading", totals);
            bar.advance(Step { episodes: 1, steps: 20, bytes: 500 });
            bar.advance(Step { episodes: 1, steps: 20, bytes: 500 });
            assert_eq!(bar.counts.steps.load(Relaxed), 40);
            bar.end();
        }
        assert_eq!(bar.bar.position(), 1000);
        bar.clear();
    }
}
