//! Commands, one file each. Only this module prints; results go to standard output, everything else to
//! standard error.

mod arguments;
mod bench;
mod check;
mod collect;
mod collecting;
mod compare;
mod compile;
mod doctor;
mod finetune;
mod exit;
mod extents;
mod figures;
mod fleet;
mod forks;
mod in_network;
mod inputs;
mod lab;
mod layouts;
mod measure;
mod messages;
mod next;
mod npy;
mod output;
mod packing;
mod plan;
mod planning;
mod pools;
mod precision;
mod pretrain;
mod profile;
mod progress;
mod records;
mod replay;
mod run;
mod runner;
mod search;
mod show;
mod states;
mod stream;
mod tasks;
mod training;
mod tune;
mod tuned;
mod variants;
mod words;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Turns a neural network (ONNX) into fast compiled code, its schedules written by a language model.
#[derive(Parser)]
#[command(name = "tilescribe", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 a bug of Tilescribe, 2 bad usage or input, 3 the environment lacks something,\n\
    4 nothing correct was found in the budget, 130 interrupted.\n\
    TILESCRIBE_LOG=debug (or info, trace, MODULE=LEVEL) prints what happens inside."
)]
struct CommandLine {
    /// How progress and errors are written to standard error
    #[arg(long, global = true, value_name = "FORMAT", default_value = "human", display_order = 1000)]
    message_format: messages::Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::Check),
    Compile(compile::Compile),
    Run(run::Run),
    Bench(bench::Bench),
    Tasks(tasks::Tasks),
    Tune(tune::Tune),
    Collect(collect::Collect),
    Plan(plan::Plan),
    Measure(measure::Measure),
    Pools(pools::Pools),
    Compare(compare::Compare),
    Pretrain(pretrain::Pretrain),
    Finetune(finetune::Finetune),
    Next(next::Next),
    Show(show::Show),
    Records(records::Records),
    Doctor(doctor::Doctor),
    Worker(worker::Worker),
    Fleet(fleet::Fleet),
}

impl Command {
    fn execute(self, out: &mut dyn Write) -> Result<()> {
        match self {
            Command::Check(command) => command.execute(out),
            Command::Compile(command) => command.execute(out),
            Command::Run(command) => command.execute(out),
            Command::Bench(command) => command.execute(out),
            Command::Tasks(command) => command.execute(out),
            Command::Tune(command) => command.execute(out),
            Command::Collect(command) => command.execute(out),
            Command::Plan(command) => command.execute(out),
            Command::Measure(command) => command.execute(out),
            Command::Pools(command) => command.execute(out),
            Command::Compare(command) => command.execute(out),
            Command::Pretrain(command) => command.execute(out),
            Command::Finetune(command) => command.execute(out),
            Command::Next(command) => command.execute(out),
            Command::Show(command) => command.execute(out),
            Command::Records(command) => command.execute(out),
            Command::Doctor(command) => command.execute(out),
            Command::Worker(command) => command.execute(out),
            Command::Fleet(command) => command.execute(out),
        }
    }
}

/// Runs the command that was given, and says how it went.
pub fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(error) => {
            if error.use_stderr() && messages::Format::of_arguments(std::env::args_os()) == messages::Format::Json {
                messages::set_format(messages::Format::Json);
                return exit::refuse(&error.to_string());
            }
            // help and version are no errors; where printing fails there is nobody to tell
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::SUCCESS });
        }
    };
    let filter = EnvFilter::try_from_env("TILESCRIBE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    messages::set_format(command_line.message_format);
    exit::prepare_signals();
    exit::guard(|| {
        let mut out = io::stdout().lock();
        command_line.command.execute(&mut out)?;
        Ok(out.flush()?)
    })
}
