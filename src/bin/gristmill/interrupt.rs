//! A run that is told to stop says how to go on with it.
//!
//! Nothing is taken back: what is on the disk is marked as unfinished, and `--resume` keeps its whole shards. The process
//! then ends by the signal itself, so that whoever sent it sees that (a shell has 128 + its number as the exit code).

use std::io::Write;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Waits for signals on a thread of its own. Where that cannot be started, they end the process without a word.
pub fn explain() {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
            let mut stderr = std::io::stderr().lock();
            let _ = writeln!(
                stderr,
                "error: interrupted by {name}; the output is unfinished\nhint: the same command with --resume goes on \
                 where it stopped, with --overwrite it starts anew"
            );
            let _ = emulate_default_handler(signal);
        }
    });
    drop(waiting);
}
