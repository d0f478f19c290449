//! Hints that look at the job and the files: what a message says in general is said with the columns, agents and
//! modules that are there. Nobody is told to do what the job already does.

use indexmap::IndexSet;

use super::StepsSource;
use super::assembly::ALL_ROWS_OR_NONE;
use crate::column::{self, NEXT_OBS, T};
use crate::episode::{NAME_LAST_OBS, RECORD_LAST_OBS, is_extra};
use crate::error::{Error, visible};
use crate::source::index::Index;
use crate::source::ingest::{ONE_SHAPE, ONE_SHAPE_A_MODULE};
use crate::source::resolve;
use crate::source::schema::{Role, agents_column};

const TRAILING_ROW: &str = "record one more row an episode with the last observation and a null action";

/// Agents that are named one by one.
const NAMED: usize = 8;

impl StepsSource {
    /// The error about an episode's rows, as [`resolve`] has it.
    pub(super) fn advise_on_rows(&self, error: Error) -> Error {
        let Some(hint) = error.hint_text() else { return error };
        let own_name = self.scan.t.as_ref().filter(|source| *source != T);
        let mut hints: Vec<String> = Vec::new();
        match hint {
            resolve::NOT_STEPS if self.scan.agent.is_some() => hints.push(format!(
                "an agent's {T} counts its own steps; if the recorded one counts the environment's, which go on while an agent \
                 waits, `[input] columns = {{ env_t = {:?} }}` says so, and the order of the rows tells each agent's",
                visible(self.scan.t.as_deref().unwrap_or(T))
            )),
            resolve::NOT_STEPS => hints.push(match own_name {
                Some(source) => format!(
                    "an episode's t must go up by one a row; if `{}` does not count steps, leave {T} = {source:?} out of \
                     `[input] columns`",
                    visible(source)
                ),
                None => resolve::NOT_STEPS.to_owned(),
            }),
            resolve::OUT_OF_ORDER => {
                hints.push(resolve::ONE_ID.to_owned());
                hints.extend(self.agents_column());
                // With time steps, rows have an order whatever their place.
                if !self.scan.timed() {
                    let theirs = self.shape.unified.alike.get(T).map_or("...", String::as_str);
                    hints.push(format!(
                        "if its rows are out of order, `[input] columns = {{ {T} = {theirs:?} }}` says which column is its \
                         time step"
                    ));
                }
            }
            resolve::TWO_ROWS => {
                hints.extend(self.agents_column());
                hints.push(resolve::TWO_ROWS.to_owned());
            }
            _ => return error,
        }
        error.hint_instead(hints.join("; "))
    }

    /// The error about a row or a column, once all is known that the index says.
    pub(super) fn advise(&self, error: Error, index: Option<&Index>) -> Error {
        let hint = match error.hint_text() {
            Some(ONE_SHAPE | ONE_SHAPE_A_MODULE) => self.agents_hint(&error, index, ["one shape", "pad the rows"]),
            Some(ALL_ROWS_OR_NONE) => self.agents_hint(&error, index, ["the same columns", "fill it in"]),
            // A trailing row tells it, too, but where rows have `new_obs` it is that of the last one which is missing.
            Some(RECORD_LAST_OBS) if self.shape.has_next_obs() => {
                Some(format!("`{NEXT_OBS}` is null in its last row: fill it in there; or {TRAILING_ROW}"))
            }
            Some(RECORD_LAST_OBS | NAME_LAST_OBS) => self.next_obs_hint(),
            _ => None,
        };
        let way = error.place().column.as_deref().and_then(|column| self.leave_out_hint(column));
        match (hint, error.hint_text(), way) {
            (None, Some(ONE_SHAPE), Some(way)) => error.hint_instead(format!("{ONE_SHAPE}; or {way}")),
            (Some(hint), ..) => error.hint_instead(hint),
            (None, ..) => error,
        }
    }

    /// How to do without a recorded model output.
    pub(super) fn leave_out_hint(&self, column: &str) -> Option<String> {
        let mut columns = self.shape.unified.columns.iter();
        let own = columns.find(|own| column::is_under(column, &own.name))?;
        let may_go = is_extra(column) && column::root(column) != NEXT_OBS && own.role == Role::Tensor;
        may_go.then(|| {
            let name = glob::Pattern::escape(&own.source);
            format!("leave it out by `[input] ignore = [{name:?}]`, if no piece needs it")
        })
    }

    /// How to say that rows are of several agents, where a column looks like it.
    fn agents_column(&self) -> Option<String> {
        agents_column(&self.shape.unified.alike)
    }

    /// What to do about agents whose rows have several shapes.
    fn agents_hint(&self, error: &Error, index: Option<&Index>, [need, else_]: [&str; 2]) -> Option<String> {
        if self.scan.agent.is_none() {
            return self.agents_column().map(|hint| format!("{hint}; else {else_}: a column has one shape"));
        }
        let index = index?;
        let entry = index.entry_of(self.rows.row_of(error)?)?;
        let mut agents: IndexSet<&str> = IndexSet::new();
        for other in index.entries.iter().filter(|e| e.module == entry.module) {
            if agents.len() <= NAMED {
                agents.extend(other.agent_id().map(|agent| &**agent));
            }
        }
        let module = index.modules.get(entry.module as usize)?;
        if agents.len() < 2 {
            return Some(format!("rows of one agent need {need}: {else_}"));
        }
        let more = if agents.len() > NAMED { ", .." } else { "" };
        let first = || agents.iter().take(NAMED);
        let names: Vec<String> = first().map(|agent| visible(agent)).collect();
        let rules: Vec<String> = first().map(|agent| format!("{agent:?} = {agent:?}")).collect();
        Some(format!(
            "the agents {}{more} all go to module {module:?}, whose rows need {need}: give those that differ a module of their \
             own, `[multi_agent] agent_to_module = {{ {}{more} }}`, or {else_}",
            names.join(", "),
            rules.join(", "),
        ))
    }

    /// Where the observation after the last step might come from.
    fn next_obs_hint(&self) -> Option<String> {
        let theirs = self.shape.unified.alike.get(NEXT_OBS)?;
        let map = format!("`[input] columns = {{ {NEXT_OBS} = {theirs:?} }}`");
        Some(format!("if `{}` is the observation after each step, {map}; or {TRAILING_ROW}", visible(theirs)))
    }
}
