// The options that set limits of the image processor: --min-pixels, --max-pixels, --video-min-pixels and
// --video-max-pixels.
#pragma once
#include "cli/options.h"
#include "recipe/processor_overrides.h"

#include <string>

namespace fvlm::cli {

Options& with_processor_options(Options& options);

// Throws Error(usage) for a number that is out of range.
ProcessorOverrides processor_overrides_of(const ParsedOptions& parsed);

// "max-pixels"
std::string option_of(const ProcessorLimit& limit);

} // namespace fvlm::cli
