//! A connector piece of one's own: a bonus for every step that keeps a pole near upright.
//!
//! ```sh
//! cargo run --example custom_connector -- datasets/cartpole-columns/job.toml /tmp/shards
//! ```
//!
//! The piece runs in front of the job's own, so `rewards` in the shards, and whatever later pieces make of them, are
//! the shaped ones. `apply` sees whole columns: the observations of all episodes of a unit, one after the other.

use std::path::Path;

use gristmill::batch::ModuleBatch;
use gristmill::connector::{Connector, Context, Plan, Repairs};
use gristmill::episode::EpisodeBatch;
use gristmill::error::{Error, Result};
use gristmill::job::Job;
use gristmill::progress::Silent;
use gristmill::run::{self, Options};
use gristmill::tensor::{DType, Tensor};

/// Adds `bonus` to the reward of each step whose observation has its pole within `angle` of upright.
#[derive(Debug)]
struct UprightBonus {
    bonus: f64,
    angle: f32,
}

/// Where CartPole's observation has the angle of the pole.
const POLE_ANGLE: usize = 2;

impl Connector for UprightBonus {
    fn name(&self) -> &'static str {
        "UprightBonus"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({ "bonus": self.bonus, "angle": self.angle })
    }

    /// Runs before any data are read: refuses what `apply` could not do, and says what changes (here nothing does:
    /// rewards stay float64).
    fn layout(&self, _: Context<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let has = |name: &str, dtype: DType, shape: &[usize]| {
            plan.episodes.get(name).is_some_and(|ty| ty.dtype == dtype && ty.shape == shape)
        };
        if has("obs", DType::Float32, &[4]) && has("rewards", DType::Float64, &[]) {
            return Ok(());
        }
        Err(Error::usage("expected CartPole: float32[4] observations and float64 rewards"))
    }

    fn apply(&self, _: Context<'_>, episodes: &mut EpisodeBatch, _: &mut ModuleBatch, _: &mut Repairs) -> Result<()> {
        let missing = || Error::internal("the layout promised this column");
        let obs = episodes.steps.get("obs").ok_or_else(missing)?;
        let rewards = episodes.steps.get("rewards").ok_or_else(missing)?;
        let shaped: Vec<f64> = obs
            .values::<f32>()
            .chunks_exact(4)
            .zip(rewards.values::<f64>())
            .map(|(obs, reward)| if obs[POLE_ANGLE].abs() < self.angle { reward + self.bonus } else { *reward })
            .collect();
        episodes.steps.set("rewards", Tensor::from_values::<f64>([], &shaped));
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(job), Some(output)) = (args.next(), args.next()) else {
        return Err(Error::usage("usage: custom_connector JOB OUTPUT"));
    };
    let mut job = Job::load(Path::new(&job)).map_err(|mut errors| errors.swap_remove(0))?;
    job.output.path = std::path::absolute(&output)
        .map_err(|e| Error::io("find the output directory", Path::new(&output), &e))?
        .display()
        .to_string();
    let own: Vec<Box<dyn Connector>> = vec![Box::new(UprightBonus { bonus: 0.5, angle: 0.05 })];
    run::convert_with(&job, own, &Options::default(), &Silent)?;
    Ok(())
}
