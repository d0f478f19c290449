//! From gristmill's errors to Python's: the kind decides the class, the text is what the command line prints, with the
//! package's names of arguments.

use std::io::ErrorKind;

use gristmill::error::{Error, Kind};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

/// The class in `gristmill.errors` for an error.
fn class(error: &Error) -> &'static str {
    match (error.io_kind(), error.kind()) {
        (Some(ErrorKind::NotFound), Kind::Usage | Kind::Environment) => "MissingFileError",
        (Some(ErrorKind::PermissionDenied), _) => "FilePermissionError",
        (_, Kind::Data) => "DataError",
        (_, Kind::Usage) => "UsageError",
        (_, Kind::Environment) => "SystemFailure",
        (_, Kind::Internal | Kind::Interrupted) => "InternalError",
    }
}

/// The exception for one error.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    if error.kind() == Kind::Interrupted {
        return PyKeyboardInterrupt::new_err(error.to_string());
    }
    let (text, hint) = in_python(error);
    exception(py, class(error), text, hint)
}

/// The text of an error and its hint, with the arguments in the hint called as the package calls them. Whole commands
/// stay as they are.
fn in_python(error: &Error) -> (String, Option<String>) {
    const ARGUMENTS: [(&str, &str); 7] = [
        ("--overwrite", "overwrite=True"),
        ("--resume", "resume=True"),
        ("--memory-limit", "memory_limit"),
        ("--scratch", "scratch"),
        ("--output", "output"),
        ("for `--input`)", "for `input`, and without a job file)"),
        ("`--input`", "`input`"),
    ];
    let text = error.to_string();
    let Some(hint) = error.hint_text() else { return (text, None) };
    if hint.contains("gristmill convert") {
        return (text, Some(hint.to_owned()));
    }
    let ours = ARGUMENTS.iter().fold(hint.to_owned(), |hint, (option, argument)| hint.replace(option, argument));
    let before = text.strip_suffix(hint).unwrap_or(&text);
    (format!("{before}{ours}"), Some(ours))
}

/// The exception for all mistakes of a job: the class is the first one's.
pub fn all_raised(py: Python<'_>, errors: &[Error]) -> PyErr {
    match errors {
        [only] => raised(py, only),
        [first, ..] => {
            let text = errors.iter().map(|e| in_python(e).0).collect::<Vec<_>>().join("\n");
            exception(py, class(first), text, None)
        }
        [] => exception(py, "InternalError", "no error was told".to_owned(), None),
    }
}

fn exception(py: Python<'_>, class: &str, text: String, hint: Option<String>) -> PyErr {
    let made = (|| {
        let class = py.import("gristmill.errors")?.getattr(class)?;
        let made = class.call1((text,))?;
        made.setattr("hint", hint)?;
        Ok(made)
    })();
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}
