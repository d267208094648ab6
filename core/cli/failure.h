// Reports the failure of a verb: a message on standard error, with --json also a document on standard output.
#pragma once

namespace fvlm::cli {

// Call it from a catch block: reports the exception being handled and returns the exit code. An Interrupted exception
// ends the process by its signal instead.
int report_failure();

} // namespace fvlm::cli
