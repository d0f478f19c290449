//! From the files' column names to the canonical ones.

use arrow::datatypes::{FieldRef, Fields};
use indexmap::{IndexMap, IndexSet};

use super::NEEDED;
use crate::column;
use crate::error::{Error, Result, closest};
use crate::source::file::InputFile;

/// A file's column under its canonical name.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) field: FieldRef,
}

/// Names that other tools give to our columns: looked for only to give advice, never to guess.
const ELSEWHERE: [(&str, &[&str]); 10] = [
    (
        column::EPS_ID,
        &[
            "episode_id",
            "episode_index",
            "episode",
            "episode_idx",
            "ep_id",
            "eps",
            "traj_id",
            "trajectory_id",
            "trajectory",
        ],
    ),
    (column::OBS, &["observation", "observations", "ob", "state", "states"]),
    (column::ACTIONS, &["action", "act", "acts"]),
    (column::REWARDS, &["reward", "rew", "rews"]),
    (column::TERMINATEDS, &["terminated", "termination", "terminations", "terminal", "terminals", "done", "dones"]),
    (column::TRUNCATEDS, &["truncated", "truncation", "truncations", "timeout", "timeouts"]),
    (column::NEXT_OBS, &["next_obs", "next_observation", "next_observations", "new_observation", "next_state"]),
    (column::T, &["timestep", "time_step", "step", "step_index", "frame_index", "ts"]),
    (column::AGENT_ID, &["agent", "agents", "agent_index", "agent_idx", "agent_name", "player", "player_id"]),
    (column::MODULE_ID, &["policy_id", "policy"]),
];

/// The columns of a file under their canonical names, in the file's order.
pub(super) fn canonical(
    fields: &Fields,
    rename: &IndexMap<String, String>,
    file: &InputFile,
    notes: &mut IndexSet<String>,
) -> Result<Vec<Named>> {
    let place = |e: Error| e.file(file.name.clone());
    let is_there = |name: &str| fields.iter().any(|f| f.name() == name || column::is_under(f.name(), name));
    let wrong: Vec<(&str, &str)> =
        rename.iter().map(|(ours, theirs)| (ours.as_str(), theirs.as_str())).filter(|(_, t)| !is_there(t)).collect();
    if !wrong.is_empty() {
        return Err(place(not_there(&wrong, fields, is_there)));
    }
    for (ours, theirs) in rename {
        let taken = NEEDED.contains(&theirs.as_str()) && !NEEDED.contains(&ours.as_str());
        if taken && !rename.contains_key(theirs) {
            let e = Error::usage(format!(
                "`[input] columns` maps {ours} to {theirs:?}, so that no column is left to be {theirs}, which is needed"
            ));
            return Err(place(e.hint(format!(
                "gristmill's name stands first, and {theirs} has its name already: leave {ours} out, or name another \
                 column: `columns = {{ {theirs} = \"...\" }}`"
            ))));
        }
    }
    let mut out: Vec<Named> = Vec::with_capacity(fields.len());
    for field in fields {
        let source = field.name();
        if is_pandas_index(source) {
            note(notes, format!("column `{source}` is the index of a pandas table and not read"));
            continue;
        }
        let renamed = rename.iter().find(|(_, theirs)| *theirs == source).map(|(ours, _)| ours.clone()).or_else(|| {
            let (ours, _) = rename.iter().find(|(_, theirs)| column::is_under(source, theirs))?;
            Some(format!("{ours}/{}", source.split_once('/')?.1))
        });
        let is_mapped = renamed.is_some();
        let name = renamed.unwrap_or_else(|| source.clone());
        if !is_mapped && rename.keys().any(|ours| *ours == name || column::is_under(&name, ours)) {
            let theirs = rename.get(&name).or_else(|| rename.get(column::root(&name))).map_or("", String::as_str);
            note(notes, format!("column `{source}` is not read: `[input] columns` takes {name} from `{theirs}`"));
            continue;
        }
        out.push(Named { name, source: source.clone(), field: field.clone() });
    }
    let found: Vec<&str> = out.iter().map(|n| n.name.as_str()).collect();
    if let Some((a, b)) = column::nested(&found) {
        let (first, second) = (&out[a].source, &out[b].source);
        let (one, other) = (&out[a].name, &out[b].name);
        // The shorter name is that of the whole.
        let (whole, part) = if one.len() <= other.len() { (one, other) } else { (other, one) };
        let why = if whole == part {
            format!("which are both {whole}")
        } else {
            format!("but {part} is a part of {whole}, which is there as one column")
        };
        let e = Error::usage(format!("found the columns {first:?} and {second:?}, {why}"));
        return Err(place(e.hint("name the one to read in `[input] columns`, or rename one in the files")));
    }
    Ok(out)
}

/// The error about names of the job that no column of the file has: all of them.
fn not_there(wrong: &[(&str, &str)], fields: &Fields, is_there: impl Fn(&str) -> bool) -> Error {
    let maps: Vec<String> = wrong.iter().map(|(ours, theirs)| format!("{ours} to {theirs:?}")).collect();
    let are = if wrong.len() == 1 { "is" } else { "are" };
    let e = Error::usage(format!(
        "`[input] columns` maps {}, which {are} not there: found the columns {}",
        maps.join(", "),
        list(fields)
    ));
    let known = |name: &str| ELSEWHERE.iter().any(|(ours, _)| *ours == column::root(name));
    let (reversed, others): (Vec<_>, Vec<_>) =
        wrong.iter().copied().partition(|(ours, theirs)| is_there(ours) && known(theirs));
    let near = |theirs: &str| closest(theirs, fields.iter().map(|f| f.name().as_str()));
    let mut hints = Vec::new();
    if !reversed.is_empty() {
        let map: Vec<String> = reversed.iter().map(|(theirs, ours)| format!("{ours} = {theirs:?}")).collect();
        hints.push(format!("gristmill's name stands on the left: `columns = {{ {} }}`", map.join(", ")));
    }
    match wrong {
        [(_, theirs)] if reversed.is_empty() => {
            hints.extend(near(theirs).map(|near| format!("did you mean {near:?}?")));
        }
        _ => {
            let meant: Vec<String> =
                others.iter().filter_map(|(ours, theirs)| Some(format!("{ours} = {:?}", near(theirs)?))).collect();
            if !meant.is_empty() {
                hints.push(format!("did you mean {}?", meant.join(", ")));
            }
        }
    }
    if hints.is_empty() { e } else { e.hint(hints.join("; ")) }
}

fn is_pandas_index(name: &str) -> bool {
    name.strip_prefix("__index_level_")
        .and_then(|rest| rest.strip_suffix("__"))
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// An error that lists the needed columns that are missing, what there is, and what might be meant.
pub(super) fn check_needed(
    needed: &[&str],
    named: &[Named],
    rename: &IndexMap<String, String>,
    fields: &Fields,
    file: &InputFile,
) -> Result<()> {
    let missing: Vec<&str> =
        needed.iter().copied().filter(|root| !named.iter().any(|n| column::is_under(&n.name, root))).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let plural = if missing.len() == 1 { "column" } else { "columns" };
    let found = if fields.is_empty() { "no column".to_owned() } else { format!("the columns {}", list(fields)) };
    // A column may be there, and be another of ours by the job's word.
    let taken_as = |name: &&str| {
        let (ours, _) = rename.iter().find(|(_, theirs)| theirs == name)?;
        Some(format!(", of which `[input] columns` takes {name} as {ours}"))
    };
    let taken = missing.iter().filter_map(taken_as).collect::<Vec<_>>().concat();
    let e = Error::usage(format!("missing {plural} {}: found {found}{taken}", missing.join(", ")));
    let e = e.file(file.name.clone());
    // What else is absent and has a likely candidate belongs in the same line of the job.
    let map: Vec<String> = ELSEWHERE
        .iter()
        .filter(|(ours, _)| !named.iter().any(|n| column::is_under(&n.name, ours)))
        .filter_map(|(ours, _)| {
            let theirs = candidate(ours, named).or_else(|| missing.contains(ours).then_some("..."))?;
            Some(format!("{ours} = \"{theirs}\""))
        })
        .collect();
    let map = map.join(", ");
    // Many a log says with one word that an episode ended, however it did.
    let ambiguous = [column::TERMINATEDS, column::TRUNCATEDS].into_iter().find_map(|ours| {
        let absent = !named.iter().any(|n| column::is_under(&n.name, ours));
        let theirs = candidate(ours, named).filter(|name| absent && is_ambiguous(name))?;
        Some(format!(
            "; {ours} = \"{theirs}\" only if that is what it is: `{theirs}` may mean terminated, truncated, or either"
        ))
    });
    let ambiguous = ambiguous.unwrap_or_default();
    Err(e.hint(if rename.is_empty() {
        format!("say in the job, under [input], which column is which: `columns = {{ {map} }}`{ambiguous}")
    } else {
        format!("`[input] columns` needs this, too: {map}{ambiguous}")
    }))
}

/// Whether a name says that an episode ended, and not how.
fn is_ambiguous(name: &str) -> bool {
    ["done", "dones"].iter().any(|word| name.eq_ignore_ascii_case(word))
}

/// A column that is probably ours under another tool's name.
fn candidate<'a>(ours: &str, named: &'a [Named]) -> Option<&'a str> {
    let (_, theirs) = ELSEWHERE.iter().find(|(name, _)| *name == ours)?;
    // Our own name may be written in other cases. What the job maps already is not to be had.
    std::iter::once(&ours).chain(*theirs).find_map(|wanted| {
        named.iter().filter(|n| n.name == n.source).find_map(|n| {
            // LeRobot writes `observation.state`; whole columns only, but flat leaves share a root.
            let (whole, root) = (n.source.as_str(), column::root(&n.source));
            if whole.eq_ignore_ascii_case(wanted) {
                Some(whole)
            } else if root.eq_ignore_ascii_case(wanted) {
                Some(root)
            } else {
                let before_dot = whole.split_once('.').map(|(head, _)| head);
                before_dot.is_some_and(|head| head.eq_ignore_ascii_case(wanted)).then_some(whole)
            }
        })
    })
}

/// Optional columns that are not there, but seem to be under another name.
pub(super) fn alike(named: &[Named]) -> IndexMap<&'static str, String> {
    const OPTIONAL: [&str; 6] =
        [column::TERMINATEDS, column::TRUNCATEDS, column::NEXT_OBS, column::T, column::AGENT_ID, column::MODULE_ID];
    let missing = OPTIONAL.into_iter().filter(|ours| !named.iter().any(|n| column::is_under(&n.name, ours)));
    missing.filter_map(|ours| Some((ours, candidate(ours, named)?.to_owned()))).collect()
}

/// Notes for optional columns that seem to be there under another name, and for names in the job that seem to be meant
/// for one of ours.
pub(super) fn suggest(named: &[Named], rename: &IndexMap<String, String>, notes: &mut IndexSet<String>) {
    let alike = alike(named);
    for (ours, theirs) in &alike {
        let advice = format!("`[input] columns = {{ {ours} = \"{theirs}\" }}` says so");
        note(notes, format!("column `{theirs}` is not read as {ours}; if that is what it is, {advice}"));
    }
    let known = |name: &str| ELSEWHERE.iter().any(|(ours, _)| *ours == name);
    for (written, theirs) in rename.iter().filter(|(written, _)| !known(column::root(written))) {
        let meant = ELSEWHERE.iter().find(|(ours, others)| {
            let there = named.iter().any(|n| column::is_under(&n.name, ours));
            !there && (others.contains(&written.as_str()) || closest(written, [*ours]).is_some())
        });
        if let Some((ours, _)) = meant.filter(|(ours, _)| alike.get(ours) != Some(theirs)) {
            note(
                notes,
                format!(
                    "`[input] columns` makes {theirs:?} a column {written}, which is none of gristmill's: did you mean {ours}?"
                ),
            );
        }
    }
}

/// Adds a note that is not there yet.
pub(super) fn note(notes: &mut IndexSet<String>, text: String) {
    notes.insert(text);
}

fn list(fields: &Fields) -> String {
    let names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
    match names.len() {
        n if n <= 24 => names.join(", "),
        n => format!("{} and {} more", names[..20].join(", "), n - 20),
    }
}
