// What a rehearsal looks at of data: whether a first few samples of each set can be read and decoded.
#pragma once
#include "data/stream/check_samples.h"
#include "train/stage_data.h"

#include <string>

namespace fvlm::train {

// So many samples are enough for the quarantine's limits to count.
inline constexpr int64_t rehearsed_samples = 50;

// Warns of those that are broken. Throws Error(data) where training would stop at them, or could use none.
CheckedSamples rehearse_samples(const SampleSource& source, const Order& order, const plan::Loader& loader,
                                const std::string& where);

// Of a stage's samples, in the order in which it will read them, and of its evaluation sets.
void rehearse_data(const plan::Plan& plan, const StageData& data, Registry& registry);

} // namespace fvlm::train
