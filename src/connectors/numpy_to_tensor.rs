//! `NumpyToTensor`: the dtypes that a torch learner sees.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{Column, ModuleBatch, Stage};
use crate::column::{INFOS, root};
use crate::connector::{Connector, Context, Piece, Plan, Repairs, Slices, piece_boilerplate};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::ModuleSettings;
use crate::tensor::{DType, TensorType};

/// Turns float64 into float32, rounding to nearest even; every other dtype stays (float16, integers, booleans).
///
/// Infos, which RLlib never makes tensors, stay as recorded.
///
/// The conversion happens once, at the end: all arithmetic before it is in the recorded dtype. As RLlib's
/// `connectors/common/numpy_to_tensor.py` and `utils/torch_utils.py` (`convert_to_torch_tensor`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NumpyToTensor {
    /// Accepted as RLlib's argument; always true here.
    pub as_learner_connector: bool,
    /// Accepted as RLlib's argument; has no effect on files.
    pub pin_memory: bool,
    /// Accepted as RLlib's argument; has no effect on files.
    pub device: Option<String>,
}

impl Default for NumpyToTensor {
    fn default() -> Self {
        Self { as_learner_connector: super::yes(), pin_memory: false, device: None }
    }
}

impl Piece for NumpyToTensor {
    const NAME: &'static str = "NumpyToTensor";

    fn check(&self) -> Result<()> {
        super::require_learner_connector(self.as_learner_connector)
    }
}

/// The dtype of the tensor that torch gets from a NumPy array.
const fn tensor_dtype(dtype: DType) -> DType {
    match dtype {
        DType::Float64 => DType::Float32,
        other => other,
    }
}

impl Connector for NumpyToTensor {
    piece_boilerplate!();

    fn reads(&self, _: &ModuleSettings, _: &str) -> bool {
        false
    }

    fn slices(&self, _: Context<'_>, _: &EpisodeLayout) -> Option<Slices> {
        Some(Slices::ANYWHERE)
    }

    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        if plan.batch.stage < Stage::Batched {
            return Err(Error::usage("the batch holds lists of items, expected one array a column")
                .hint("put BatchIndividualItems before NumpyToTensor"));
        }
        plan.batch.stage = Stage::Tensors;
        for column in plan.batch.columns.iter_mut().filter(|c| root(&c.name) != INFOS) {
            column.ty =
                TensorType { dtype: tensor_dtype(column.ty.dtype), shape: std::mem::take(&mut column.ty.shape) };
            if let Some(stored) = &mut column.stored {
                stored.step.dtype = column.ty.dtype;
            }
        }
        Ok(())
    }

    fn apply(&self, _: Context<'_>, _: &mut EpisodeBatch, batch: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        for (_, column) in batch.iter_mut().filter(|(name, _)| root(name) != INFOS) {
            let dtype = tensor_dtype(column.ty().dtype);
            *column = match column {
                Column::Whole(tensor) => tensor.cast(dtype)?.into(),
                // Zeros are zeros in every dtype.
                Column::Windows(windows) => Column::Windows(windows.with_steps(|steps| steps.cast(dtype))?),
            };
        }
        Ok(())
    }
}
