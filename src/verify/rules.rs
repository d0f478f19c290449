//! Which rules a module's rows must keep: they follow from the manifest's columns, job and pieces.

use super::CheckName::{Flags, Mask, Padding, State, Time};
use super::tally::Tally;
use crate::column::{AGENT_ID, EPS_ID, LOSS_MASK, NEXT_STATE_IN, SEQ_LENS, STATE_IN, T, TERMINATEDS, TRUNCATEDS, root};
use crate::connectors;
use crate::dataset::Module;
use crate::error::Error;
use crate::indexed::Axis;
use crate::job::{Compat, Duplicates, Job};
use crate::manifest::Manifest;
use crate::sink::ColumnType;
use crate::stats;
use crate::tensor::{DType, TensorType};

/// What is held against each row.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// For each column, whether `loss_mask` says which of its places count in its statistics (`None`: no statistics).
    pub masked: Vec<Option<bool>>,
    /// The mask over real steps.
    pub loss_mask: Option<usize>,
    /// Real steps of a sequence.
    pub seq_lens: Option<usize>,
    /// Places of a sequence; 1 where a row is one step.
    pub places: usize,
    /// Whether rows are sequences.
    pub sequences: bool,
    /// The mask is true at the real steps and nowhere else: no burn-in, no steps that a piece added.
    pub exact_mask: bool,
    /// Columns whose places behind `seq_lens` are zero.
    pub padded: Vec<usize>,
    /// Columns whose places are zero where the mask (the first column; the second says which value means padding) says.
    pub padded_by_mask: Option<(usize, u8, Vec<usize>)>,
    /// `terminateds` and `truncateds`, where they are those of single steps.
    pub flags: Vec<usize>,
    /// Whose row it is, and when.
    pub eps_id: Option<usize>,
    /// The agent.
    pub agent_id: Option<usize>,
    /// The time step, where time goes on in an episode's rows.
    pub t: Option<usize>,
    /// How far `t` goes on at least from one row to the next.
    pub advance: Advance,
    /// Each step stands in one place, so that real steps can be counted.
    pub countable: bool,
}

/// How far `t` goes on from one row of an episode to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Advance {
    /// It does not go back: rows overlap, or a piece added steps.
    #[default]
    Rises,
    /// By the row's steps at least.
    Whole,
}

impl Rules {
    /// The rules for a table of steps: its columns have statistics, and that is all.
    pub fn of_table(steps: &Module) -> Self {
        let columns = &steps.schema().columns;
        let loss_mask = steps.column(LOSS_MASK).filter(|&at| columns[at].1.dtype_name() == DType::Bool.name());
        let mask_shape = loss_mask.map(|at| columns[at].1.shape());
        let masked = columns.iter().map(|(name, ty)| Some(stats::is_masked(name, ty.shape(), mask_shape)));
        Self { masked: masked.collect(), loss_mask, places: 1, ..Self::default() }
    }

    /// The rules for a module. Says which cannot be held, and why.
    pub fn of(manifest: &Manifest, module: &Module, tally: &mut Tally) -> Self {
        let columns = &module.schema().columns;
        let of = |name: &str, dtype: Option<DType>| {
            let at = module.column(name)?;
            let fits = matches!((&columns[at].1, dtype), (ColumnType::Tensor(ty), Some(d)) if ty.dtype == d);
            (fits || dtype.is_none()).then_some(at)
        };
        let shape = |at: usize| columns[at].1.shape();
        let mut rules = Self { loss_mask: of(LOSS_MASK, Some(DType::Bool)), ..Self::default() };
        let mask_shape = rules.loss_mask.map(|m| shape(m).to_vec());
        rules.masked = columns
            .iter()
            .map(|(name, ty)| match ty {
                _ if matches!(name.as_str(), EPS_ID | AGENT_ID | T) => None,
                ColumnType::Tensor(ty) => Some(stats::is_masked(name, &ty.shape, mask_shape.as_deref())),
                _ => None,
            })
            .collect();
        let job: Option<Job> = serde_json::from_value(manifest.job.clone()).ok();
        if let Some(job) = &job {
            state(job, module, tally);
        } else {
            tally.skip(State, "the manifest's job is of another version");
        }
        (rules.eps_id, rules.agent_id) = (of(EPS_ID, None), of(AGENT_ID, None));

        let types: Vec<&str> = manifest.pipeline.iter().filter_map(|p| p.get("type")?.as_str()).collect();
        let unknown = types.iter().find(|t| connectors::find(t).is_err());
        if types.is_empty() || unknown.is_some() || job.is_none() {
            let why = match unknown {
                Some(name) => format!("the pipeline has the piece {name:?}, which this gristmill does not know"),
                None => "the manifest does not say which pieces ran".to_owned(),
            };
            for check in [Mask, Padding, Flags, Time] {
                tally.skip(check, &why);
            }
            return rules;
        }
        let has = |name: &str| types.contains(&name);
        let windows = has("OverlappingSequences") || has("DecisionTransformerWindows");
        let longer = has("AddOneTsToEpisodesAndTruncate");
        // Recorded columns may have the same names: they say nothing of the rows' places.
        let stateful = job.as_ref().is_some_and(|j| j.rl_module.module(module_id(j, module.name())).stateful);
        let cut = has("OverlappingSequences") || (stateful && has("AddTimeDimToBatchAndZeroPad"));
        rules.seq_lens = of(SEQ_LENS, Some(DType::Int64)).filter(|&at| cut && shape(at).is_empty());
        let attention = of("attention_mask", Some(DType::Bool)).or(of("is_pad", Some(DType::Bool)));
        let attention = attention.filter(|_| has("DecisionTransformerWindows"));
        rules.sequences = rules.seq_lens.is_some() || has("DecisionTransformerWindows");
        // The mask that says which places are padding, where `seq_lens` does not.
        let padding_mask =
            attention.or(rules.loss_mask.filter(|_| rules.sequences)).filter(|_| rules.seq_lens.is_none());
        let places_of = padding_mask.or(rules.loss_mask).or(attention);
        let stored = module.tables().iter().find_map(|t| match t.axis {
            Axis::First => Some(t.places),
            Axis::Last => t.prefix.first().copied(),
        });
        rules.places = places_of.and_then(|at| shape(at).first().copied()).or(stored).unwrap_or(1);
        for at in [rules.loss_mask, padding_mask].into_iter().flatten().filter(|_| rules.sequences) {
            if *shape(at) != [rules.places] {
                let what = format!("found a mask of shape {:?}, expected [{}]", shape(at), rules.places);
                tally.fail(Mask, super::in_module(Error::data(what), module).column(&columns[at].0));
            }
        }
        rules.exact_mask = !has("OverlappingSequences") && !longer;

        let timed = |at: &usize| {
            let (name, ty) = &columns[*at];
            !matches!(root(name), STATE_IN | NEXT_STATE_IN | SEQ_LENS | EPS_ID | AGENT_ID | T)
                && ty.shape().first() == Some(&rules.places)
        };
        if rules.seq_lens.is_some() {
            rules.padded = (0..columns.len()).filter(timed).collect();
        } else if let Some(mask) = padding_mask {
            let fills = manifest
                .pipeline
                .iter()
                .any(|p| p.get("fill").and_then(|f| f.as_object()).is_some_and(|f| !f.is_empty()));
            if fills {
                tally.skip(Padding, "the job fills padding with values of its own");
            } else {
                let other = |at: &usize| *at != mask && columns[*at].0 != "timesteps";
                let padding = u8::from(columns[mask].0 == "is_pad");
                rules.padded_by_mask = Some((mask, padding, (0..columns.len()).filter(timed).filter(other).collect()));
            }
        }
        let flags = [TERMINATEDS, TRUNCATEDS].map(|n| of(n, Some(DType::Bool)));
        if has("NStepReturns") || windows {
            tally.skip(Flags, "rows overlap: the flags are those of a window's last step, or stand in several rows");
        } else if module.tables().iter().any(|t| t.steps.column(TERMINATEDS).or(t.steps.column(TRUNCATEDS)).is_some()) {
            tally.skip(Flags, "the flags stand in a table of steps");
        } else {
            rules.flags = flags.into_iter().flatten().collect();
        }
        let shuffled = job.as_ref().is_some_and(|j| j.output.shuffle.is_some());
        let moved =
            job.as_ref().is_none_or(|j| j.learner.compat == Compat::Rllib260 || j.input.duplicates == Duplicates::Keep);
        if moved {
            let why = "the job keeps RLlib's order of rows, or copies of episodes";
            tally.skip(Time, why);
            tally.skip(Flags, why);
            rules.flags.clear();
        } else if shuffled {
            let why = "the job shuffles rows";
            tally.skip(Time, why);
            tally.skip(Flags, why);
            rules.flags.clear();
        } else {
            rules.t = of(T, Some(DType::Int64));
        }
        rules.advance = if windows || longer { Advance::Rises } else { Advance::Whole };
        rules.countable = !windows && (!longer || rules.loss_mask.is_some());
        rules
    }
}

/// The module's id: its name, behind the part's where the job splits. An id may have slashes of its own.
fn module_id<'a>(job: &Job, name: &'a str) -> &'a str {
    let in_part = |part: &String| name.strip_prefix(part.as_str())?.strip_prefix('/');
    job.output.split.iter().flat_map(|parts| parts.keys()).find_map(in_part).unwrap_or(name)
}

/// The shapes of recurrent states are those of the job.
fn state(job: &Job, module: &Module, tally: &mut Tally) {
    let settings = job.rl_module.module(module_id(job, module.name()));
    let declared = settings.initial_state.leaves();
    for (name, ty) in &module.schema().columns {
        let Some((STATE_IN | NEXT_STATE_IN, leaf)) = name.split_once('/').or(Some((name, ""))) else { continue };
        let ColumnType::Tensor(TensorType { shape, .. }) = ty else { continue };
        match declared.iter().find(|(path, _)| path == leaf) {
            Some((_, declared)) if *shape != declared.shape => {
                let what = format!("found a state of shape {shape:?}, the job declares {:?}", declared.shape);
                let hint = "a state stands once a sequence: it has no time dimension";
                tally.fail(State, super::in_module(Error::data(what), module).column(name).hint(hint));
            }
            Some(_) => {}
            None => tally.skip(State, "the job leaves the shapes of the states to the recording"),
        }
    }
}
