//! `gristmill schema`

use gristmill::{job, manifest};

use super::Failure;
use crate::args::{Document, SchemaArgs};
use crate::report;

pub fn run(args: &SchemaArgs) -> Result<(), Failure> {
    report::print_json(&match args.of {
        Document::Job => job::schema(),
        Document::Manifest => manifest::schema(),
    })
}
