//! The compiled half of the Python package: converts, releases the interpreter's lock, calls the library, converts back.
//!
//! What users see is in `gristmill/*.py`; nothing here is for them.

mod column;
mod errors;
mod job;
mod map;
mod piece;
mod shards;
mod table;
mod watch;

use std::path::PathBuf;

use gristmill::manifest::Manifest;
use pyo3::prelude::*;

/// The manifest of a data set, checked, as JSON.
#[pyfunction]
fn manifest(py: Python<'_>, directory: PathBuf) -> PyResult<String> {
    let manifest = Manifest::load(&directory).and_then(|m| m.to_json());
    manifest.map_err(|e| errors::raised(py, &e))
}

#[pymodule]
fn _gristmill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<column::Column>()?;
    module.add_class::<job::CoreJob>()?;
    module.add_class::<shards::Shard>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Values>()?;
    module.add_function(wrap_pyfunction!(column::gather, module)?)?;
    module.add_function(wrap_pyfunction!(manifest, module)?)?;
    module.add_function(wrap_pyfunction!(shards::stream, module)?)
}
