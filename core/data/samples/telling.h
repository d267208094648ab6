// What a sample says, before it is tokens: its conversations, in whichever of the forms its JSON has.
#pragma once
#include "data/chat.h"
#include "data/samples/parts.h"
#include "data/samples/sample.h"
#include "recipe/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct Talk {
  std::string system; // empty: none
  std::vector<Turn> turns;
};

struct Telling {
  std::string source;
  std::vector<Talk> talks;        // one; chosen and rejected; or one for each choice
  std::vector<SampleText> tokens; // in place of talks: made beforehand
  std::optional<int64_t> right_choice;
  std::optional<int64_t> frame_count;
};

// The form is the first of these whose parts are there, those that the source's `fields` name before all others:
// token_ids and loss_mask (a list each, or a list for each text), choices, a pair, messages, conversations, assistant,
// caption; then KEY.txt as a caption. Throws Error(data) without a place.
Telling read_telling(const Parts& parts, const std::optional<std::string>& caption_file, const plan::Source& source,
                     const plan::Mix& mix);

} // namespace fvlm
