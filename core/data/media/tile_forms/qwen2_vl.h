// The cells of Qwen2-VL, which other families have with other limits.
#pragma once
#include "data/media/image_processor_reader.h"

#include <cstdint>

namespace fvlm {

inline constexpr const char* qwen2_vl_options[]{"min_pixels", "max_pixels", "patch_size", "temporal_patch_size",
                                                "merge_size"};

// Where the config does not say it: how many frames of a video are read together, and patches along a side of a cell.
void read_qwen2_vl_cells(ProcessorReader& in, int64_t step_frames, int64_t merge_size = 2);

} // namespace fvlm
