// What a user sets of an image processor, in place of what its folder says.
#pragma once
#include "data/media/image_processor.h"
#include "recipe/processor_overrides.h"

#include <filesystem>
#include <string>
#include <vector>

namespace fvlm {

// Throws Error(data) at the folder for a limit that the processor does not have, for a range without numbers, and for
// one below a single cell.
void override_processor(ImageProcessor& processor, const ProcessorOverrides& overrides,
                        const std::filesystem::path& folder);

// The files of a Hugging Face folder that have to be others, so that it says the same without the overrides, here and
// in transformers. Throws Error(data) as find_image_processor() does.
struct ProcessorFile {
  std::string name, text;
};
std::vector<ProcessorFile> overridden_files(const std::filesystem::path& folder, const ProcessorOverrides& overrides);

} // namespace fvlm
