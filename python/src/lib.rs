//! The compiled half of the Python package: converts, releases the interpreter's lock, calls the library, converts back.
//!
//! What users see is in `gristmill/*.py`; nothing here is for them.

mod checked;
mod column;
mod errors;
mod job;
mod map;
mod parts;
mod piece;
mod shards;
mod table;
mod watch;
mod window;

use pyo3::prelude::*;

#[pymodule]
fn _gristmill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<column::Column>()?;
    module.add_class::<job::CoreJob>()?;
    module.add_class::<parts::Coordinator>()?;
    module.add_class::<parts::Worker>()?;
    module.add_class::<shards::Dataset>()?;
    module.add_class::<shards::Shard>()?;
    module.add_class::<shards::Steps>()?;
    module.add_class::<table::Table>()?;
    module.add_class::<table::Values>()?;
    module.add_class::<window::Window>()?;
    module.add_function(wrap_pyfunction!(column::gather, module)?)
}
