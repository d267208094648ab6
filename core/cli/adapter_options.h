// The option --adapter of verbs that answer: adapters in folders, beside the model that they are for.
#pragma once
#include "cli/options.h"
#include "infer/generator.h"

#include <string>
#include <vector>

namespace fvlm::cli {

// For verbs that answer with one: --adapter FOLDER.
Options& with_adapter_option(Options& options);
infer::Generator& use_adapter(const ParsedOptions& parsed, infer::Generator& generator); // returns it

// For those that answer with any: --adapter NAME=FOLDER. Returns the names, in the order of Prompt::adapter. `model`:
// the name of the model itself.
Options& with_adapters_option(Options& options);
std::vector<std::string> add_adapters(const ParsedOptions& parsed, const std::string& model,
                                      infer::Generator& generator);

} // namespace fvlm::cli
