//! A run that is told to stop says how to go on with it.
//!
//! Nothing is taken back: what is on the disk is marked as unfinished, and `--resume` keeps its whole shards. The process
//! then ends by the signal itself, so that whoever sent it sees that (a shell has 128 + its number as the exit code).

use std::io::Write;
use std::path::{Path, PathBuf};

use gristmill::sink::OutputDir;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Waits for signals on a thread of its own. Where that cannot be started, they end the process without a word. `output` is
/// the directory that is written.
pub fn explain(output: PathBuf) {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
    let waiting = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
            let _ = writeln!(std::io::stderr().lock(), "error: interrupted by {name}; {}", state(&output));
            let _ = emulate_default_handler(signal);
        }
    });
    drop(waiting);
}

/// How the run leaves its output. It begins to write late, and may have finished a moment ago.
fn state(output: &Path) -> &'static str {
    if OutputDir::is_unfinished(output).unwrap_or(true) {
        "the output is unfinished\nhint: the same command with --resume goes on where it stopped, with --overwrite it \
         starts anew"
    } else {
        "no unfinished output is left behind"
    }
}

#[cfg(test)]
mod tests {
    use gristmill::sink::Existing;

    use super::*;

    #[test]
    fn only_what_was_begun_is_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("shards");
        assert_eq!(state(&output), "no unfinished output is left behind");
        let begun = OutputDir::prepare(&output, Existing::Refuse).unwrap();
        assert!(state(&output).contains("--resume goes on"), "{}", state(&output));
        drop(begun); // a run that fails takes back what it wrote
        assert_eq!(state(&output), "no unfinished output is left behind");
    }
}
