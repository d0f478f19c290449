//! `gristmill plan`

use serde::Serialize;
use serde_json::Value;

use gristmill::plan::{Plan, plan};

use super::{Failure, load};
use crate::args::PlanArgs;
use crate::report;

/// The document of `plan --json`.
#[derive(Serialize)]
struct Planned {
    /// The job as resolved, all defaults filled in.
    job: Value,
    #[serde(flatten)]
    plan: Plan,
}

pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let job = load(&args.job, "plan")?;
    let plan = plan(&job)?;
    if args.job.json {
        report::print_json(&Planned { job: job.to_json(), plan })
    } else {
        report::print(&report::planned(&job, &plan))
    }
}
