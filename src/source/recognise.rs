//! Which layout the files are in, and the source for it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};

use super::Source;
use super::faults::{LostFile, is_of_data};
use super::file::{Discovered, InputFile, Instead, NO_MANIFEST, NO_RECORDING, discover, name_in};
use super::ingest::type_name;
use super::items::{ItemsSource, is_item_type};
use super::renamed::{FileNames, Renamed};
use super::rows::RowMap;
use super::schema;
use super::steps::StepsSource;
use crate::column;
use crate::error::{Error, Result, visible};
use crate::job::{Job, Layout, OnBadEpisode};

/// The column of `rllib-episodes`.
const ITEM: &str = "item";

/// RLlib's column format has all of these (`offline_env_runner.py`, `_map_episodes_to_data`).
const RLLIB_COLUMNS: [&str; 9] = [
    column::EPS_ID,
    column::AGENT_ID,
    column::MODULE_ID,
    column::OBS,
    column::ACTIONS,
    column::REWARDS,
    column::NEXT_OBS,
    column::TERMINATEDS,
    column::TRUNCATEDS,
];

/// Opens the job's input, without infos.
///
/// # Errors
/// If a file is missing or damaged, or the layout cannot be told or does not fit.
pub fn open(job: &Job) -> Result<Box<dyn Source>> {
    open_with(job, false)
}

/// Opens the job's input, with infos or without.
///
/// # Errors
/// See [`open`].
pub fn open_with(job: &Job, infos: bool) -> Result<Box<dyn Source>> {
    let discovered = discover(&job.input.paths, &job.base)?;
    if let Some(set) = discovered.named.first() {
        let error = Error::usage("found a data set that gristmill wrote, expected a recording");
        return Err(error.file(name_in(set, &job.base)?).hint(NO_RECORDING));
    }
    let mut notes = notes(&discovered, job)?;
    if let Some((what, first)) = without_manifest(&discovered, job)? {
        notes.push(format!("{first} is {what}: {NO_MANIFEST}"));
    }
    let paths = discovered.files;
    let tolerant = job.input.on_bad_episode != OnBadEpisode::Fail;
    let (mut files, mut lost) = (Vec::with_capacity(paths.len()), Vec::new());
    for path in &paths {
        match InputFile::open_in(path, &job.base) {
            Ok(file) => files.push(Arc::new(file)),
            Err(error) if tolerant && is_of_data(&error) => {
                let name = error.place().file.clone().unwrap_or_else(|| path.display().to_string());
                lost.push(LostFile { name, error });
            }
            Err(error) => return Err(error),
        }
    }
    if let (true, Some(first)) = (files.iter().all(|f| f.rows() == 0), lost.first()) {
        return Err(first.error.clone());
    }
    open_rows(job, RowMap::new(files).with_lost(lost).with_notes(notes), infos)
}

/// What to tell of data sets that lie where recordings were looked for. That of the job itself is no news, and what is told
/// must not depend on whether it is there already.
pub(crate) fn notes(discovered: &Discovered, job: &Job) -> Result<Vec<String>> {
    let output = fs::canonicalize(job.output_path()).ok();
    let others = discovered.passed_over.iter().filter(|set| output.is_none() || fs::canonicalize(set).ok() != output);
    let note = |set: &PathBuf| {
        Ok(format!(
            "{} is passed over: it is no recording, but a data set that gristmill wrote",
            name_in(set, &job.base)?
        ))
    };
    let spelled_out = discovered.spelled_out.iter().map(|set| {
        Ok(format!(
            "shards of the data set {} are read as if they were a recording, as the paths say",
            name_in(set, &job.base)?
        ))
    });
    others.map(note).chain(spelled_out).collect()
}

/// What to tell of shards of which nothing says whose they are, and the first.
pub(crate) fn without_manifest(discovered: &Discovered, job: &Job) -> Result<Option<(String, String)>> {
    let Some((first, instead, count)) = &discovered.without_manifest else { return Ok(None) };
    let beside = match instead {
        Instead::Nothing => "there is no manifest.json beside them",
        Instead::Unreadable => "the manifest.json beside them cannot be read",
    };
    let others = if *count > 1 { format!(" (and {} more files)", count - 1) } else { String::new() };
    let what = format!("called as a data set's shards are{others}, and {beside}");
    Ok(Some((what, format!("file {}", name_in(first, &job.base)?))))
}

/// Opens files that were found already, or that are none: tables in memory.
///
/// # Errors
/// If the layout cannot be told or does not fit.
pub fn open_files(job: &Job, files: Vec<Arc<InputFile>>, infos: bool) -> Result<Box<dyn Source>> {
    open_rows(job, RowMap::new(files), infos)
}

fn open_rows(job: &Job, rows: RowMap, infos: bool) -> Result<Box<dyn Source>> {
    let tolerant = job.input.on_bad_episode != OnBadEpisode::Fail;
    if rows.rows() == 0 {
        return Err(Error::usage(format!("found no rows in {} file(s)", rows.files().len()))
            .file(rows.files().first().map_or_else(String::new, |f| f.name.clone()))
            .hint("a recorder that was stopped before its first write leaves such files"));
    }
    let (layout, why) = recognise(job, &rows)?;
    if layout == Layout::RllibEpisodes {
        let column = job.input.columns.get(ITEM).map_or(ITEM, String::as_str).to_owned();
        for file in rows.files() {
            check_items(file, &column)?;
        }
        if !job.input.ignore.is_empty() {
            let what = format!("found columns to leave out of a recording of which `{column}` alone is read");
            return Err(Error::usage(what).job_key("input.ignore").hint("leave the key out"));
        }
        return Ok(Box::new(ItemsSource::new(why, rows, column, infos).tolerant(tolerant)));
    }
    let names = FileNames::new(&job.input.columns);
    let steps = schema::unify(rows.files(), &job.input.columns, &job.input.ignore, infos, tolerant)
        .and_then(|unified| Ok(StepsSource::new(why, rows, unified)?.tolerant(tolerant)))
        .map_err(|e| names.add(e))?;
    let inner: Box<dyn Source> = Box::new(steps);
    Ok(if job.input.columns.is_empty() { inner } else { Box::new(Renamed { inner, names }) })
}

fn check_items(file: &InputFile, column: &str) -> Result<()> {
    let there = || file.schema.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>().join(", ");
    match file.field(column) {
        Some((_, field)) if is_item_type(field.data_type()) => Ok(()),
        Some((_, field)) => Err(no_items(field, column).file(file.name.clone())),
        None => Err(Error::usage(format!(
            "layout rllib-episodes needs a binary column `{column}`; the file has {}",
            there()
        ))
        .file(file.name.clone())
        .hint("`input.layout = \"auto\"` recognises the layout from the columns")),
    }
}

/// A column in the place of items that are packed.
fn no_items(field: &Field, column: &str) -> Error {
    let error = Error::usage(format!("found {}, expected binary msgpack items", type_name(field))).column(column);
    match field.data_type() {
        DataType::Dictionary(_, values) if is_item_type(values) => {
            error.hint(format!("write the column as plain binary: `table[{column:?}].cast(pyarrow.binary())`"))
        }
        _ => error,
    }
}

/// Where nothing looks like a step, a column that may hold episodes is what the message must be about.
fn look_for_items(file: &InputFile, item: &str) -> Result<()> {
    let is_step = |name: &str| RLLIB_COLUMNS.contains(&column::root(name));
    if file.schema.fields().iter().any(|f| is_step(f.name())) {
        return Ok(());
    }
    if let Some((_, field)) = file.field(item) {
        return Err(no_items(field, item).file(file.name.clone()));
    }
    match file.schema.fields().iter().as_slice() {
        [field] if is_item_type(field.data_type()) => {
            let name = field.name();
            let error = Error::usage(format!("found no steps, but a binary column `{}`", visible(name)));
            let hint = format!("if it holds episodes that RLlib packed: `[input] columns = {{ {ITEM} = {name:?} }}`");
            Err(error.file(file.name.clone()).hint(hint))
        }
        _ => Ok(()),
    }
}

/// The layout and a sentence that says why.
fn recognise(job: &Job, rows: &RowMap) -> Result<(Layout, String)> {
    let named = |what: &str| format!("{what} (as the job says)");
    match job.input.layout {
        Layout::RllibEpisodes => return Ok((Layout::RllibEpisodes, named("rllib-episodes"))),
        Layout::RllibColumns => return Ok((Layout::RllibColumns, named("rllib-columns"))),
        Layout::Steps => return Ok((Layout::Steps, named("steps"))),
        Layout::Auto => {}
    }
    let file = rows.files().iter().find(|f| f.rows() > 0).unwrap_or(&rows.files()[0]);
    let user_name = |canonical: &'static str| job.input.columns.get(canonical).map_or(canonical, String::as_str);
    let type_of = |name: &str| file.field(name).map(|(_, f)| f.data_type());
    let has = |canonical: &'static str| file.has(user_name(canonical));
    if type_of(user_name(ITEM)).is_some_and(is_item_type) && !has(column::OBS) {
        return Ok((Layout::RllibEpisodes, format!("rllib-episodes (a binary column `{}`)", user_name(ITEM))));
    }
    if job.input.columns.keys().all(|ours| ours == ITEM) {
        look_for_items(file, user_name(ITEM))?;
    }
    if RLLIB_COLUMNS.into_iter().all(has) && !has(column::T) {
        return Ok((
            Layout::RllibColumns,
            "rllib-columns (RLlib's columns from eps_id to truncateds, and no t)".to_owned(),
        ));
    }
    Ok((Layout::Steps, "steps (one row a step)".to_owned()))
}
