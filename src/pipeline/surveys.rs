//! What pieces that look at the whole data set found out: kept for a run, sent to other processes, told in the manifest.

use std::any::Any;
use std::sync::Arc;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ModulePlan, Pipeline};
use crate::connector::{Connector, Context, Finding, ModuleUnit, Survey};
use crate::error::{Error, Result};

/// What the survey of a piece found out, for who has to do the same to data that come later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectorStatistics {
    /// Place of the piece in the pipeline.
    pub index: usize,
    /// Its type.
    pub connector: String,
    /// The statistics by which each module's rows were changed. Their keys are described with the piece.
    pub modules: IndexMap<String, serde_json::Value>,
}

/// What the surveys found out, by piece and module.
#[derive(Debug, Default)]
pub struct Surveys(Vec<Vec<Option<Arc<dyn Any + Send + Sync>>>>);

impl Surveys {
    pub(super) fn get(&self, piece: usize, module: usize) -> Option<&(dyn Any + Send + Sync)> {
        self.0.get(piece)?.get(module)?.as_deref()
    }

    /// Files the results of piece number `piece`, one a module.
    pub fn set(&mut self, piece: usize, results: Vec<Option<Box<dyn Any + Send + Sync>>>) {
        while self.0.len() <= piece {
            self.0.push(Vec::new());
        }
        self.0[piece] = results.into_iter().map(|r| r.map(Arc::from)).collect();
    }

    /// Lets module `to` go by the result that module `from` has.
    pub fn share(&mut self, piece: usize, from: usize, to: usize) {
        if let Some(results) = self.0.get_mut(piece)
            && let Some(result) = results.get(from).cloned()
            && let Some(slot) = results.get_mut(to)
        {
            *slot = result;
        }
    }
}

impl Pipeline {
    /// The surveys of piece number `piece`, one a module; `None` if it needs no pass of its own.
    #[must_use]
    pub fn surveys(&self, piece: usize, modules: &[ModulePlan]) -> Option<Vec<Option<Box<dyn Survey>>>> {
        let of = |m: &ModulePlan| self.pieces[piece].survey(self.context(&m.settings));
        let all: Vec<_> = modules.iter().map(of).collect();
        all.iter().any(Option::is_some).then_some(all)
    }

    /// What a survey sees of a unit.
    ///
    /// # Errors
    /// If the data break a rule that only data can show; the error names the piece.
    pub fn observe(
        &self,
        piece: usize,
        surveys: &[Option<Box<dyn Survey>>],
        modules: &[ModulePlan],
        number: usize,
        unit: &[ModuleUnit],
    ) -> Result<Vec<(usize, Finding)>> {
        let mut out = Vec::new();
        for share in unit {
            let Some(survey) = &surveys[share.module] else { continue };
            let cx = Context { unit: number, ..self.context(&modules[share.module].settings) };
            let finding = survey.observe(cx, &share.episodes, &share.batch).map_err(|e| self.named(piece, e))?;
            out.push((share.module, finding));
        }
        Ok(out)
    }

    /// What the surveys found out, as bytes: by piece and module.
    ///
    /// # Errors
    /// If a piece has no form for it.
    pub fn save_surveys(&self, surveys: &Surveys) -> Result<Vec<Vec<Option<Vec<u8>>>>> {
        let of_piece = |(i, results): (usize, &Vec<Option<Arc<dyn Any + Send + Sync>>>)| {
            let save = |result: &Option<Arc<dyn Any + Send + Sync>>| {
                let Some(result) = result else { return Ok(None) };
                let what =
                    "needs to know the whole data set, and what it knows has no form that could be sent to workers";
                let portable = self.pieces[i].portable_survey().ok_or_else(|| Error::usage(what));
                portable.and_then(|p| p.save(&**result)).map(Some).map_err(|e| self.named(i, e))
            };
            results.iter().map(save).collect()
        };
        surveys.0.iter().enumerate().map(of_piece).collect()
    }

    /// The surveys that [`Self::save_surveys`] gave.
    ///
    /// # Errors
    /// If another pipeline did.
    pub fn restore_surveys(&self, saved: &[Vec<Option<Vec<u8>>>]) -> Result<Surveys> {
        let mut out = Surveys::default();
        for (i, results) in saved.iter().enumerate() {
            let restore = |saved: &Option<Vec<u8>>| {
                let Some(saved) = saved else { return Ok(None) };
                let portable = self.pieces.get(i).and_then(|p| p.portable_survey());
                portable.ok_or_else(|| Error::internal("a survey of another pipeline"))?.restore(saved).map(Some)
            };
            out.set(i, results.iter().map(restore).collect::<Result<_>>()?);
        }
        Ok(out)
    }

    /// See [`Connector::surveys_each_part`].
    #[must_use]
    pub fn surveys_each_part(&self, piece: usize) -> bool {
        self.pieces[piece].surveys_each_part()
    }

    /// What a piece's survey has found out, by the modules' names.
    #[must_use]
    pub fn statistics(&self, surveys: &Surveys, modules: &[ModulePlan]) -> Vec<ConnectorStatistics> {
        let of = |(i, piece): (usize, &dyn Connector)| {
            let all = modules
                .iter()
                .enumerate()
                .filter_map(|(m, module)| Some((module.name(), piece.statistics(surveys.get(i, m)?)?)));
            let modules: IndexMap<String, serde_json::Value> = all.collect();
            let connector = piece.name().to_owned();
            (!modules.is_empty()).then_some(ConnectorStatistics { index: i, connector, modules })
        };
        self.pieces().enumerate().filter_map(of).collect()
    }
}
