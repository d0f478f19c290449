//! Batches that hold no memory but their own, and text of the types that the file has.
//!
//! ```text
//! a record batch of a file   | eps_id .. | obs .. | state_out .. |      one buffer, as large as all of it
//! a block of 4096 rows                     |  |                         a part of a column: keeps all of that
//! apart                                    |  |  copied                 keeps what it counts for
//! ```

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, MutableArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::error::ArrowError;

use super::damaged;
use crate::error::{Error, Result};

/// The same rows, copied. Text is left as it is: what is made of it keeps nothing of it.
pub(super) fn apart(batch: &RecordBatch) -> Result<RecordBatch> {
    let column = |column: &ArrayRef| match column.data_type() {
        ty if is_text(ty) => Ok(ArrayRef::clone(column)),
        _ => copied(column),
    };
    let columns = batch.columns().iter().map(column).collect::<Result<_>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &rows).map_err(|e| damaged(&e))
}

/// The same rows with columns of the types that `of` names.
pub(super) fn as_in<'a>(batch: &RecordBatch, of: impl Fn(&str) -> Option<&'a DataType>) -> Result<RecordBatch> {
    let typed = |(field, column): (&FieldRef, &ArrayRef)| {
        let ty = of(field.name()).unwrap_or(field.data_type());
        let own = if ty == column.data_type() { Ok(ArrayRef::clone(column)) } else { cast(column, ty) };
        own.map(|column| (Arc::new(Field::clone(field).with_data_type(ty.clone())), column))
    };
    let cast_all = || -> Result<RecordBatch, ArrowError> {
        let columns = batch.schema_ref().fields().iter().zip(batch.columns()).map(typed);
        let (fields, columns): (Vec<FieldRef>, Vec<ArrayRef>) = columns.collect::<Result<_, _>>()?;
        let schema = Schema::new_with_metadata(fields, batch.schema_ref().metadata().clone());
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::new(schema), columns, &rows)
    };
    cast_all().map_err(|e| Error::data(format!("the rows cannot have the types of the file: {e}")))
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..))
}

fn copied(column: &ArrayRef) -> Result<ArrayRef> {
    let data = column.to_data();
    let mut copy = MutableArrayData::new(vec![&data], false, column.len());
    copy.try_extend(0, 0, column.len()).map_err(|e| damaged(&e))?;
    Ok(make_array(copy.freeze()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{FixedSizeListArray, Float32Array, LargeBinaryArray, StringArray};

    use super::*;

    #[test]
    fn a_slice_keeps_nothing_of_the_rest() {
        let values: ArrayRef = Arc::new((0..40_000).map(|i| (i % 3 > 0).then_some(i as f32)).collect::<Float32Array>());
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let rows = FixedSizeListArray::new(field, 4, values, None);
        let items: LargeBinaryArray = (0..10_000).map(|i| (i % 7 > 0).then(|| vec![1_u8; i % 50])).collect();
        let ids = StringArray::from_iter_values((0..10_000).map(|i| i.to_string()));
        let columns: [(&str, ArrayRef, bool); 3] =
            [("obs", Arc::new(rows), true), ("item", Arc::new(items), true), ("eps_id", Arc::new(ids), true)];
        let all = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        for (start, len) in [(0, 10), (777, 100), (9_990, 10), (5, 0)] {
            let slice = all.slice(start, len);
            let own = apart(&slice).unwrap();
            assert_eq!(own, slice);
            for column in &own.columns()[..2] {
                assert!(column.get_array_memory_size() < 2000 + 100 * len, "{}", column.get_array_memory_size());
            }
        }
    }
}
