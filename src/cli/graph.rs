//! `skein graph`: prints the service graph as text, or in a format for another program.

use clap::Args;

use super::folders::Folders;
use super::output::{CommandError, CommandOutput};
use super::{Global, workspace};
use crate::graph::{Format, render};

#[derive(Debug, Args)]
pub(super) struct GraphArgs {
    /// Set the output format
    #[arg(long, value_enum, default_value_t = GraphFormat::Text)]
    format: GraphFormat,
    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum GraphFormat {
    Text,
    Dot,
    Mermaid,
    Svg,
    Json,
}

pub(super) fn run(
    args: &GraphArgs,
    global: &Global,
    folders: &Folders,
    output: &mut CommandOutput,
) -> Result<(), CommandError> {
    let plan = workspace::plan(global, folders, output)?;
    let format = match args.format {
        _ if args.json => Format::Json,
        GraphFormat::Text => Format::Text,
        GraphFormat::Dot => Format::Dot,
        GraphFormat::Mermaid => Format::Mermaid,
        GraphFormat::Svg => Format::Svg,
        GraphFormat::Json => Format::Json,
    };
    output.text(&render(&plan, format));
    Ok(())
}
