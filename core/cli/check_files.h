// What `check --files` looks at: that files are there, and that they are what the Plan takes them for, by their
// headers.
#pragma once
#include "recipe/files.h"

namespace fvlm::cli {

// look_at_files(), and besides: configs, tokenizers, headers of weights and the first header of each shard.
recipe::FileReport check_files(const recipe::Resolved& resolved);

} // namespace fvlm::cli
