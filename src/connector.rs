//! What a connector piece is.
//!
//! A piece runs in two phases. [`Connector::layout`] sees only names, dtypes and shapes: it says what will come out,
//! or why nothing can. Then the data come, unit by unit, and the piece keeps that promise; the pipeline checks that it
//! did. So a wrong job fails before the first row is read.
//!
//! There are three kinds of pieces, by how much of the data set they must know to do a unit:
//!
//! | kind | knows | runs | example |
//! |---|---|---|---|
//! | [`Connector::apply`] alone | the unit | on any thread, in any order | `AddColumnsFromEpisodesToTrainBatch` |
//! | [`Connector::ordered`] | everything before it | one unit after the other | `CountBasedCuriosity` |
//! | [`Connector::survey`] | the whole data set | like the first, after a pass of its own | `GeneralAdvantageEstimation` |

mod slices;

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::batch::{BatchLayout, ModuleBatch, Rows, Stage};
use crate::column::{INFOS, root};
use crate::episode::{EpisodeBatch, EpisodeLayout};
use crate::error::{Error, Result};
use crate::job::{Compat, ModuleSettings, Space};
use crate::scratch::Scratch;
use crate::source::keys::Numbering;
use crate::tensor::TensorType;

pub use self::slices::Slices;

/// What a piece may know of its surroundings.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The settings of the module whose batch is built.
    pub module: &'a ModuleSettings,
    /// RLlib's behaviour to the letter, or repaired.
    pub compat: Compat,
    /// What the piece's own survey found out; `None` for pieces without one, and while planning.
    pub survey: Option<&'a (dyn Any + Send + Sync)>,
    /// The space of the recorded observations, where the job gives it.
    pub obs_space: Option<&'a Space>,
    /// Number of the unit, in dataset order; what surveys file their partial results under.
    pub unit: usize,
    /// Whether windows are stored once, and not laid out; see [`crate::indexed`].
    pub indexed: bool,
}

impl<'a> Context<'a> {
    /// A context without a survey and a space, whose windows are laid out.
    #[must_use]
    pub const fn new(module: &'a ModuleSettings, compat: Compat) -> Self {
        Self { module, compat, survey: None, obs_space: None, unit: 0, indexed: false }
    }
}

/// One module's share of a unit.
#[derive(Debug)]
pub struct ModuleUnit {
    /// Which module: an index into the run's modules.
    pub module: usize,
    /// Its episodes.
    pub episodes: EpisodeBatch,
    /// Its batch so far.
    pub batch: ModuleBatch,
}

/// All chunks of a unit in dataset order, whichever module they belong to: `(index in the unit, chunk)`.
#[must_use]
pub fn in_order(unit: &[ModuleUnit]) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> =
        unit.iter().enumerate().flat_map(|(m, share)| (0..share.episodes.len()).map(move |i| (m, i))).collect();
    all.sort_by_key(|&(m, i)| unit[m].episodes.chunks[i].ordinal);
    all
}

/// Room for what a piece keeps while units go by.
#[derive(Debug, Clone)]
pub struct Room {
    /// Bytes that it may hold in memory.
    pub bytes: usize,
    /// Where the rest goes.
    pub scratch: Scratch,
}

/// What a piece learnt in a pass over the data before the one that counts.
pub type Rehearsed = Arc<dyn Any + Send + Sync>;

/// A piece whose result depends on everything before it. It gets the units one after the other, in dataset order.
pub trait Ordered: Send {
    /// Tells the room that there is, and what a rehearsal found out if there was one, before the first unit comes.
    ///
    /// # Errors
    /// If the rehearsal was another piece's.
    fn enter(&mut self, _: Room, _: Option<Rehearsed>) -> Result<()> {
        Ok(())
    }

    /// Whether [`Self::apply`] failed for want of room and would not after a rehearsal.
    fn wants_rehearsal(&self) -> bool {
        false
    }

    /// Changes a unit as [`Connector::layout`] foretold.
    ///
    /// # Errors
    /// If the data break a rule that only data can show.
    fn apply(&mut self, compat: Compat, unit: &mut [ModuleUnit], repairs: &mut Repairs) -> Result<()>;

    /// What it knows of the units so far, for [`Self::restore`] of the same piece in another process.
    ///
    /// # Errors
    /// If it cannot be told: it rehearsed, and knows the rest from scratch files.
    fn save(&self) -> Result<Vec<u8>>;

    /// Goes on behind the units that whoever saved this has seen. Comes after [`Self::enter`], before the first unit.
    ///
    /// # Errors
    /// If it is another piece's.
    fn restore(&mut self, saved: &[u8]) -> Result<()>;
}

/// A pass over the data for an ordered piece that has not room enough to do its work in one go.
pub trait Rehearsal: Send + Sync {
    /// Looks at a unit as the pieces before have left it. Any thread, any order; it keeps nothing, because findings are
    /// merged into another value than the one that looks.
    ///
    /// # Errors
    /// If the data break a rule that only data can show.
    fn observe(&self, compat: Compat, unit: &[ModuleUnit]) -> Result<Finding>;

    /// Takes in what was found, unit by unit in dataset order.
    ///
    /// # Errors
    /// If scratch space fails.
    fn merge(&mut self, finding: Finding) -> Result<()>;

    /// The result, handed to [`Ordered::enter`].
    ///
    /// # Errors
    /// If scratch space fails.
    fn finish(self: Box<Self>) -> Result<Rehearsed>;
}

/// What a piece found out about one unit in its own pass over the data.
pub type Finding = Box<dyn Any + Send>;

/// A piece's own pass over the whole data set.
pub trait Survey: Send + Sync {
    /// Tells the room that there is, before the first unit comes.
    fn enter(&mut self, _: Room) {}

    /// Looks at one module's share of a unit, as the pieces before have left it. Any thread, any order.
    ///
    /// # Errors
    /// If the data break a rule that only data can show.
    fn observe(&self, cx: Context<'_>, episodes: &EpisodeBatch, batch: &ModuleBatch) -> Result<Finding>;

    /// What [`Self::observe`] has kept instead of handing it over, for sums that are the same in any order: taken out when
    /// the pass is over and merged like all other findings, into a survey that may be another one.
    fn kept(&self) -> Option<Finding> {
        None
    }

    /// Takes in what was found, unit by unit in dataset order.
    ///
    /// # Errors
    /// If scratch space fails.
    fn merge(&mut self, finding: Finding) -> Result<()>;

    /// The result, handed to [`Connector::apply`] as [`Context::survey`].
    ///
    /// # Errors
    /// If there is none.
    fn finish(self: Box<Self>) -> Result<Box<dyn Any + Send + Sync>>;
}

/// How the result of a survey goes to another process and comes back as it was.
#[derive(Debug, Clone, Copy)]
pub struct Portable {
    save: fn(&(dyn Any + Send + Sync)) -> Result<Vec<u8>>,
    restore: fn(&[u8]) -> Result<Box<dyn Any + Send + Sync>>,
}

impl Portable {
    /// For results of one type.
    #[must_use]
    pub fn of<T: Serialize + DeserializeOwned + Any + Send + Sync>() -> Self {
        Self {
            save: |result| {
                let result = result.downcast_ref::<T>().ok_or_else(|| Error::internal("another piece's survey"))?;
                rmp_serde::to_vec_named(result).map_err(|e| Error::internal(format!("a survey cannot be sent: {e}")))
            },
            restore: |saved| {
                let result = rmp_serde::from_slice::<T>(saved);
                Ok(Box::new(result.map_err(|e| Error::internal(format!("a survey cannot be received: {e}")))?))
            },
        }
    }

    /// The result as bytes.
    ///
    /// # Errors
    /// If it is another piece's.
    pub fn save(self, result: &(dyn Any + Send + Sync)) -> Result<Vec<u8>> {
        (self.save)(result)
    }

    /// The result from bytes.
    ///
    /// # Errors
    /// If they are not what [`Self::save`] gave.
    pub fn restore(self, saved: &[u8]) -> Result<Box<dyn Any + Send + Sync>> {
        (self.restore)(saved)
    }
}

/// The layout phase: what comes in, changed in place into what goes out.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Names, dtypes and shapes of the episodes.
    pub episodes: &'a mut EpisodeLayout,
    /// Names, dtypes and shapes of the batch so far.
    pub batch: &'a mut BatchLayout,
}

impl Plan<'_> {
    /// Adds per-step column `name`, unless its root stood in the batch when the piece started.
    ///
    /// # Errors
    /// If items can no longer be added.
    pub fn add_steps(&mut self, name: &str, ty: TensorType) -> Result<()> {
        if self.batch.stage > Stage::Items {
            return Err(Error::usage(format!("adds `{name}` item by item, but the batch is already joined"))
                .hint("put this piece before BatchIndividualItems"));
        }
        self.batch.push(name, ty, Rows::Steps);
        Ok(())
    }
}

/// The rows that a repair of RLlib's behaviour touched, by the repair's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repairs(Vec<(Cow<'static, str>, u64)>);

impl Repairs {
    /// Counts `rows` rows for `repair`.
    pub fn count(&mut self, repair: &'static str, rows: u64) {
        self.add(Cow::Borrowed(repair), rows);
    }

    fn add(&mut self, repair: Cow<'static, str>, rows: u64) {
        if rows == 0 {
            return;
        }
        match self.0.iter_mut().find(|(n, _)| *n == repair) {
            Some((_, n)) => *n += rows,
            None => self.0.push((repair, rows)),
        }
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (name, rows) in &other.0 {
            self.add(name.clone(), *rows);
        }
    }

    /// The counts, sorted by name.
    #[must_use]
    pub fn sorted(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<(&str, u64)> = self.0.iter().map(|(name, rows)| (&**name, *rows)).collect();
        all.sort_unstable();
        all
    }
}

/// One piece of the learner connector pipeline.
pub trait Connector: Debug + Send + Sync {
    /// The name in a job file: RLlib's class name where RLlib has the piece.
    fn name(&self) -> &'static str;

    /// The options with all defaults filled in, for the manifest.
    fn config(&self) -> serde_json::Value;

    /// What will come out, from what comes in.
    ///
    /// # Errors
    /// If this piece cannot run on such data, with the reason.
    fn layout(&self, cx: Context<'_>, plan: &mut Plan<'_>) -> Result<()>;

    /// Rows before a chunk's first step that the piece looks at.
    fn look_back(&self, _: &ModuleSettings) -> usize {
        0
    }

    /// Where an episode that is larger than memory may be cut, if episodes have the layout `episodes` when the piece gets
    /// them. Nowhere, unless a piece says otherwise: it may look ahead, or know where an episode begins.
    fn slices(&self, _: Context<'_>, _episodes: &EpisodeLayout) -> Option<Slices> {
        None
    }

    /// What the piece does to RLlib's ids.
    fn numbering(&self) -> Numbering {
        Numbering::None
    }

    /// Whether the piece, for a module, looks at the recorded step column `column` (a leaf's name: `state_out/h`), at
    /// its values or its type. Columns that no piece looks at are not read. Infos are looked at by few.
    fn reads(&self, _: &ModuleSettings, column: &str) -> bool {
        root(column) != INFOS
    }

    /// Whether the piece cuts episodes into sequences in a way of its own. In front of the default pipeline such a piece
    /// takes the place of `AddTimeDimToBatchAndZeroPad`, behind the pieces that add columns step by step.
    fn cuts_sequences(&self) -> bool {
        false
    }

    /// The state of a piece that must see units in order; called once per pass over the data. Such a piece's `apply`
    /// is not called.
    fn ordered(&self) -> Option<Box<dyn Ordered>> {
        None
    }

    /// The pass over the data for an ordered piece that [`Ordered::wants_rehearsal`].
    fn rehearsal(&self, _: Room) -> Option<Box<dyn Rehearsal>> {
        None
    }

    /// The pass over the data that a piece needs before it can do its work, for one module.
    fn survey(&self, _: Context<'_>) -> Option<Box<dyn Survey>> {
        None
    }

    /// Whether the survey is about the rows that one batch is made of, as RLlib's learner sees them, and not about the
    /// data set: then each part of `output.split` goes by its own, and else all by that of the part for training.
    fn surveys_each_part(&self) -> bool {
        false
    }

    /// How the survey's result goes to another process. Without it, a job with this piece runs on one machine only.
    fn portable_survey(&self) -> Option<Portable> {
        None
    }

    /// What the survey found out, for the manifest: who meets new data later must be able to do the same to them.
    fn statistics(&self, _survey: &(dyn Any + Send + Sync)) -> Option<serde_json::Value> {
        None
    }

    /// Changes episodes and batch as [`Connector::layout`] foretold.
    ///
    /// # Errors
    /// If the data break a rule that only data can show.
    fn apply(
        &self,
        cx: Context<'_>,
        episodes: &mut EpisodeBatch,
        batch: &mut ModuleBatch,
        repairs: &mut Repairs,
    ) -> Result<()>;
}

/// A connector whose fields are its options in a job file.
pub trait Piece: Connector + Serialize + DeserializeOwned + schemars::JsonSchema + Default + 'static {
    /// The name in a job file.
    const NAME: &'static str;

    /// The piece with options that work, for the example in the documentation.
    #[must_use]
    fn example() -> Self {
        Self::default()
    }

    /// Refuses option values that a type cannot exclude.
    ///
    /// # Errors
    /// With the option and what is allowed.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The two methods of [`Connector`] that follow from [`Piece`].
macro_rules! piece_boilerplate {
    () => {
        fn name(&self) -> &'static str {
            <Self as $crate::connector::Piece>::NAME
        }
        fn config(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("options are plain data")
        }
    };
}
pub(crate) use piece_boilerplate;
