// Checks that every kind shares: how memory, structs, workspace, threads and errors are dealt with.
#pragma once
#include "check/context.h"

namespace fvlm::check {

// For kinds with device tensors. `needs` names the rows that establish the plain numbers.
std::vector<Check> generic_checks(const std::string& needs);

// Parts of them, each in its own file.
std::vector<Check> interface_checks();
std::vector<Check> concurrency_checks(const std::string& needs);
std::vector<Check> placement_checks(const std::string& needs);

// Of sizes just above powers of two, a dimension at a time.
std::vector<Check> attention_size_checks(const std::string& needs);
std::vector<Check> partial_attention_checks(const std::string& needs);
std::vector<Check> paged_attention_checks();
std::vector<Check> loss_size_checks(const std::string& needs);
std::vector<Check> kernel_option_checks();
std::vector<Check> kernel_size_checks();

// Those of them that make sense where there is no fvlm_call: no workspace, no strides, no host.
std::vector<Check> generic_host_checks();

// Runs every trial that supports() accepts and compares it with float64. Not applicable if it accepts none.
Outcome expect_correct(Context& context, const std::vector<Trial>& trials, const Variation& variation = {});

// The same, but a trial that the plugin refuses with FVLM_ERROR_UNSUPPORTED, writing nothing, passes too.
Outcome expect_correct_or_refused(Context& context, const std::vector<Trial>& trials, const Variation& variation);

// Runs the trial with calls that all have to return ok. Throws RowAborted{State::failed} where one does not.
Run run_fully(Context& context, const Trial& trial, const Variation& variation = {});
// The same; throws RowAborted{State::not_applicable} if supports() refuses.
Run run_if_supported(Context& context, const Trial& trial);

// Adds `more` to `rows`.
void append(std::vector<Check>& rows, std::vector<Check> more);

// "" where every expected output of the run is within its tolerance; `worst` takes the largest ratio.
std::string mismatch(const Context& context, const Trial& trial, const Run& run, double& worst);

// "" where two runs gave the same bits.
std::string different_bits(const Run& one, const Run& other);

} // namespace fvlm::check
