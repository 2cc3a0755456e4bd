//! How the programs start and end.

use std::process::ExitCode;

use crate::Error;

/// Runs a program whose command line has been read: what it refuses goes to the standard error, see [`Error::exit_code`].
///
/// Where Unix signals exist, a reader of the output that has seen enough, such as `head`, ends the program without a word.
pub fn run(program: impl FnOnce() -> Result<(), Error>) -> ExitCode {
    sigpipe::reset();
    match program() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
