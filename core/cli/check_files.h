// The work of `check --files`: checks that the files of a Plan exist and, by their headers, that they are of the
// expected kind.
#pragma once
#include "recipe/files.h"

namespace fvlm::cli {

// Besides recipe::find_missing_files(), reads configs, tokenizers, headers of weights and the beginning of each shard
// that is not compressed. What lies behind it, `data check` reads.
recipe::FileReport check_files(const recipe::Resolved& resolved);

} // namespace fvlm::cli
