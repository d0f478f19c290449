//! From gristmill's errors to Python's: the kind decides the class, the text is what the command line prints.

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
    exception(py, class(error), error.to_string(), error.hint_text())
}

/// The exception for all mistakes of a job: the class is the first one's.
pub fn all_raised(py: Python<'_>, errors: &[Error]) -> PyErr {
    match errors {
        [only] => raised(py, only),
        [first, ..] => {
            let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            exception(py, class(first), text, None)
        }
        [] => exception(py, "InternalError", "no error was told".to_owned(), None),
    }
}

fn exception(py: Python<'_>, class: &str, text: String, hint: Option<&str>) -> PyErr {
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
