//! Compiles recorded reinforcement-learning episodes into train batches: RLlib's learner connector pipeline, offline.
//!
//! ```text
//! replay files ──source──▶ EpisodeBatch ──pipeline──▶ ModuleBatch ──sink──▶ shards ──▶ manifest.json
//! ```
//!
//! A conversion goes through these steps; each is a module, and a module uses only those above it (a test holds the
//! code to that):
//!
//! 1. [`job`]: what to read, what runs, what to write. Read from TOML or JSON, checked, all defaults filled in.
//! 2. [`source`]: finds the files, recognises their layout, and says which rows make up which episode (the first pass);
//!    then reads everything once, in order, and puts episodes together (the second).
//! 3. [`episode`]: whole episodes as columns of [`tensor`]s.
//! 4. [`connectors`]: the pieces, one file each. A [`connector`] first foretells what it makes of the columns, then
//!    makes it. [`pipeline`] puts them in RLlib's order and checks that they keep their promises.
//! 5. [`batch`]: the columns of a train batch.
//! 6. [`sink`]: rows to shards, with digests; [`stats`] on the way.
//! 7. [`manifest`]: what was written, last and by rename, so that a directory with a manifest is complete.
//!
//! 8. [`dataset`] reads what was written; [`verify`] checks it, [`diff`](mod@diff) compares two of it.
//!
//! [`run`] does all of it, [`plan`] as much as schemas and footers can tell; [`inspect`](mod@inspect) tells what is in files.
//! The library knows no terminal: it counts through [`progress`], and the command line shows.
//!
//! ```
//! use std::path::Path;
//!
//! use gristmill::job::Job;
//! use gristmill::progress::Silent;
//! use gristmill::run::{self, Options};
//!
//! let out = tempfile::tempdir()?;
//! let mut job = Job::load(Path::new("datasets/cartpole-columns/job.toml")).map_err(|errors| errors[0].to_string())?;
//! job.output.path = out.path().join("shards").display().to_string();
//!
//! let report = run::convert(&job, &Options::default(), &Silent)?;
//! assert_eq!((report.episodes_in, report.steps_in), (28, 1664));
//! assert_eq!(report.modules["default_policy"].rows, 1664);
//! assert!(out.path().join("shards/manifest.json").exists());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod batch;
pub mod column;
pub mod connector;
pub mod connectors;
pub mod dataset;
pub mod diff;

pub mod episode;
pub mod error;
pub mod exact;
pub mod indexed;
pub mod inspect;
pub mod job;
pub mod manifest;
pub mod numpy;
pub mod pipeline;
pub mod plan;
pub mod progress;
mod regular;
pub mod run;
pub mod scratch;
pub mod sink;
pub mod source;
pub mod sql;
pub mod stats;
pub mod tensor;
mod threads;
pub mod verify;
pub mod window;
