//! `schemas/connectors.md` is what `gristmill connectors` prints, piece by piece.

use std::fmt::Write as _;
use std::path::Path;

use crate::cli::{gristmill, stdout};

#[test]
fn the_page_of_connectors_is_current() {
    let here = Path::new(".");
    let mut page = String::from(
        "# Connectors\n\nGenerated from the pieces themselves: `gristmill connectors NAME` prints the same. \
         `make schemas` makes it anew.\n",
    );
    for entry in gristmill::connectors::all() {
        let text = stdout(&gristmill(&["connectors", entry.name], here));
        let body = text.strip_prefix(entry.name).expect("the name comes first").trim();
        let _ = write!(page, "\n## {}\n\n{}\n", entry.name, fence(body));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/connectors.md");
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == page, "schemas/connectors.md is out of date: run `make schemas`");
}

/// The options and the example are columns of text; the prose is Markdown already.
fn fence(body: &str) -> String {
    let (prose, rest) = body.split_at(
        ["\nOptions:", "\nIt has no options.", "\nIn a job:"]
            .iter()
            .filter_map(|m| body.find(m))
            .min()
            .unwrap_or(body.len()),
    );
    format!("{}\n\n```text\n{}\n```", prose.trim(), rest.trim())
}
