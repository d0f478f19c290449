//! Arrow data that comes through the C interface is taken as it is: nobody has looked yet whether text is UTF-8, or offsets,
//! views and dictionary keys stay within their buffers. Whoever reads such an array trusts it, so it is looked at first.
//!
//! ```text
//! numbers                 nothing but lengths
//! text                    its bytes once: is it ASCII? else row by row
//! all else (lists, ..)    what `ArrayData::validate_full` looks at: offsets, views, keys
//! ```

use arrow::array::{Array, ArrayData, AsArray, GenericStringArray, OffsetSizeTrait, RecordBatch, StructArray};
use arrow::datatypes::DataType;
use gristmill::error::{Error, Result};

/// Refuses a table with a column that does not hold what its type promises.
///
/// # Errors
/// Of kind `Data`, with the column, and the row where that can be told.
pub fn check(batches: &[RecordBatch]) -> Result<()> {
    let mut first_row = 0;
    for batch in batches {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            check_array(column.as_ref()).map_err(|fault| fault.told(field.name(), first_row))?;
        }
        first_row += batch.num_rows() as u64;
    }
    Ok(())
}

/// What is wrong with an array.
enum Fault {
    /// Bytes of a text, and the row where they are.
    NotUtf8(usize),
    /// Something that the library found.
    Arrow(String),
}

impl Fault {
    fn told(self, column: &str, first_row: u64) -> Error {
        match self {
            Self::NotUtf8(row) => Error::data("found bytes that are not UTF-8, expected text")
                .row(first_row + row as u64)
                .hint("decode the column with the encoding that it has (latin-1, for one) before it is given to gristmill"),
            Self::Arrow(found) => Error::data(format!("the column's Arrow data are damaged: {found}"))
                .hint("`table.validate(full=True)` of pyarrow looks for the same; the program that made the table is at fault"),
        }
        .column(column)
    }
}

fn check_array(array: &dyn Array) -> std::result::Result<(), Fault> {
    let arrow = |e: arrow::error::ArrowError| Fault::Arrow(e.to_string());
    let data = array.to_data();
    // The validity of a text is looked at where its rows are, below. The library looks at the whole buffer, and a table
    // that was cut into many batches has the same one in each.
    match array.data_type() {
        DataType::Utf8 => {
            as_binary(data, DataType::Binary).and_then(|data| data.validate_full()).map_err(arrow)?;
            check_text(array.as_string::<i32>())
        }
        DataType::LargeUtf8 => {
            as_binary(data, DataType::LargeBinary).and_then(|data| data.validate_full()).map_err(arrow)?;
            check_text(array.as_string::<i64>())
        }
        DataType::Struct(_) => {
            data.validate_data().map_err(arrow)?;
            let array: &StructArray = array.as_struct();
            array.columns().iter().try_for_each(|column| check_array(column.as_ref()))
        }
        _ => data.validate_full().map_err(arrow),
    }
}

/// The same offsets and bytes, without the promise that they are text. Nothing but sizes is looked at.
fn as_binary(data: ArrayData, ty: DataType) -> std::result::Result<ArrayData, arrow::error::ArrowError> {
    data.into_builder().data_type(ty).build()
}

/// Offsets are known to be in order and within the bytes.
fn check_text<O: OffsetSizeTrait>(array: &GenericStringArray<O>) -> std::result::Result<(), Fault> {
    let (offsets, bytes) = (array.value_offsets(), array.value_data());
    let (first, last) = (offsets[0].as_usize(), offsets[array.len()].as_usize());
    if bytes[first..last].is_ascii() {
        return Ok(());
    }
    let mut rows = offsets.windows(2);
    match rows.position(|row| std::str::from_utf8(&bytes[row[0].as_usize()..row[1].as_usize()]).is_err()) {
        Some(row) => Err(Fault::NotUtf8(row)),
        None => Ok(()),
    }
}
