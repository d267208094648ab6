// How a verb's failure leaves the process: a message on standard error, with --json a document on standard output, and
// the exit code.
#pragma once

namespace fvlm::cli {

// Of the exception that is being handled. Where it is Interrupted, ends the process by that signal.
int report_failure();

} // namespace fvlm::cli
