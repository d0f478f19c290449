//! The one direction: a module uses only what stands to its left. See ARCHITECTURE.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The modules of the library, from what everything stands on to what stands on everything.
const ORDER: [&str; 28] = [
    "error",
    "regular",
    "numpy",
    "column",
    "progress",
    "threads",
    "scratch",
    "tensor",
    "window",
    "indexed",
    "stats",
    "exact",
    "job",
    "episode",
    "source",
    "sql",
    "batch",
    "connector",
    "connectors",
    "pipeline",
    "sink",
    "manifest",
    "dataset",
    "verify",
    "diff",
    "run",
    "plan",
    "inspect",
];

/// Uses that go the other way, each with its reason. The list should only ever get shorter.
const EXCEPTIONS: [(&str, &str); 1] = [
    // A job is checked against one schema, and that schema holds the options of every connector.
    ("job", "connectors"),
];

fn source_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The modules that a file names by `crate::`, comments left out.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let uses = code.flat_map(|line| line.split("crate::").skip(1));
    uses.map(|rest| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>())
        .inspect(|name| assert!(!name.is_empty(), "write one `use crate::module::..` a line"))
        .collect()
}

#[test]
fn modules_use_only_what_stands_to_their_left() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let place = |name: &str| ORDER.iter().position(|m| *m == name);
    let mut files = Vec::new();
    source_files(&src, &mut files);
    let (mut seen, mut wrong, mut excepted) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for path in files {
        let relative = path.strip_prefix(&src).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if matches!(module, "bin" | "lib") {
            continue; // The doors stand outside and see the library as any user would.
        }
        let own = place(module).unwrap_or_else(|| panic!("module `{module}` has no place in ORDER"));
        seen.insert(own);
        // `$crate::` in a macro names the module of whoever uses it.
        for name in used(&std::fs::read_to_string(&path).unwrap().replace("$crate::", "")) {
            if place(&name).is_some_and(|other| other <= own) {
                continue;
            }
            match EXCEPTIONS.iter().position(|e| *e == (module, &*name)) {
                Some(i) => {
                    excepted.insert(i);
                }
                None => wrong.push(format!("{} uses crate::{name}", relative.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "against the order {}:\n{}", ORDER.join(" → "), wrong.join("\n"));
    assert_eq!(seen.len(), ORDER.len(), "ORDER names a module that is not there");
    assert_eq!(excepted.len(), EXCEPTIONS.len(), "an exception is needed no more: take it out");
}

/// ARCHITECTURE.md says what the index costs in memory.
#[cfg(target_pointer_width = "64")]
#[test]
fn the_index_is_small() {
    use gristmill::source::index::{Entry, Span};
    assert_eq!((size_of::<Entry>(), size_of::<Span>()), (72, 16));
}
