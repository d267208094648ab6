// A sample as its shard's JSON and names tell it: tokens and sizes, and where its frames are to be had. No pixels yet.
#pragma once
#include "data/shards/grouping.h"
#include "data/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

struct SampleText {
  std::vector<TokenId> ids;
  std::vector<uint8_t> answer; // 1 where an answer's token stands: what "loss on answers" learns
};

struct Media {
  enum class Kind {
    none,   // text alone
    images, // one image for each frame, or one for all
    video,  // an mp4, read at `times`
    pixels  // an array of frames made by `preprocess`, of which `picks` are used
  };
  Kind kind = Kind::none;
  std::vector<Member> members;
  std::vector<double> times;  // seconds, one a frame
  std::vector<int64_t> picks; // numbers of frames; one for all, or one a frame
};

struct Sample {
  std::string key, source;
  std::vector<SampleText> texts; // one; chosen and rejected; or one for each choice
  int64_t frames = 0;            // shared by all texts
  Media media;
  std::optional<int64_t> right_choice;
  int64_t cut_tokens = 0, cut_answer_tokens = 0; // what max_text_tokens cost, over all texts
  std::string dropped;                           // why a sample with nothing wrong in it is left out; empty: it is used

  // Of the decoder, for each text: its frames and its tokens.
  int64_t rows() const {
    int64_t all = 0;
    for (const auto& text : texts) all += frames + static_cast<int64_t>(text.ids.size());
    return all;
  }
};

} // namespace fvlm
