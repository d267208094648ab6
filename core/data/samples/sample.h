// A sample before its frames are decoded: tokens, the number of frames, and where their data lie.
#pragma once
#include "data/shards/grouping.h"
#include "data/tile_grid.h"
#include "data/tokenizer.h"
#include "recipe/visual_rows.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm {

// What an answer earned that the model itself gave in training.
struct Outcome {
  float weight = 1; // of the mean over its tokens
  float advantage = 0;
  float reward = 0, deviation = 0; // the second: standard deviation of the rewards of the prompt's answers
  float tokens = 0;
  float is_cut_off = 0; // 1: it has as many tokens as it may have, and no end
};
// In the order of objective::LossInputs::outcomes.
inline constexpr std::array outcome_values{&Outcome::weight,    &Outcome::advantage, &Outcome::reward,
                                           &Outcome::deviation, &Outcome::tokens,    &Outcome::is_cut_off};

struct SampleText {
  std::vector<TokenId> ids; // visual_placeholder where a visual row of the decoder stands
  std::vector<uint8_t>
      answer_mask;          // 1 for the tokens of answers that are learnt, which the loss on answers is computed over
  int64_t placeholders = 0; // among the ids
  Outcome outcome = {};

  int64_t tokens() const { return static_cast<int64_t>(ids.size()) - placeholders; }
};

struct Media {
  enum class Kind {
    none,   // text alone
    images, // one image for each frame, or one that is repeated
    video,  // an mp4, read at `times`
    pixels  // an array of frames written by `preprocess`; `picks` selects some
  };
  Kind kind = Kind::none;
  std::vector<Member> members;
  std::vector<TileGrid> tiles; // of each image, where the encoder's image processor cuts images; or of a video's cells
  std::vector<double> times;   // seconds, one a frame of the video, or of images that are one
  double seconds = 0;          // how long the video is
  std::vector<int64_t> picks;  // frame indices: one that is repeated, or one for each frame
};

struct Sample {
  // What of a retrieval sample its inputs are; all others are whole.
  enum class Role { whole, query, positive, negative };

  std::string key, source;
  Role role = Role::whole;
  std::vector<SampleText> texts; // one; chosen and rejected; or one for each choice
  // Of a retrieval sample, which has no texts: what is embedded, each with a text and with frames of its own. The query
  // is first, then what it is to find, then what it is not. Its frames are theirs, one after the other.
  std::vector<std::shared_ptr<const Sample>> inputs;
  // What a teacher with a prompt of its own reads in place of each text, with the same answer; empty: there is none.
  std::vector<SampleText> teacher_texts;
  bool teacher_is_cached = false; // teacher_texts were read before training and take no rows of a pack
  int64_t frames = 0;             // shared by all texts
  int64_t copies = 1;             // of each picture, one after the other among the frames: of a still image, all
  std::vector<uint8_t> bytes;     // of the text that is the only frame of an encoder of bytes; others have none
  int64_t rows_per_frame = 1;     // of the decoder, in each text
  Media media;
  std::optional<int64_t> correct_choice;
  std::optional<bool> is_desirable; // whether the answer was said to be a good one
  std::vector<std::string> answers; // all that an evaluation takes for right; empty: the text's own
  bool has_short_answer = false;    // of a question about a context: the first line of what is generated counts
  int64_t truncated_tokens = 0, truncated_answer_tokens = 0; // removed by max_text_tokens, over all texts
  std::string dropped;                                       // why a valid sample is skipped; empty when it is used
  bool lacks_answer = false;                                 // dropped because nothing is left to learn
  bool exceeds_frames = false;                               // dropped because of max_frames
  std::vector<std::shared_ptr<const Sample>> further;        // the same sample as further decoders read it

  // Those that are decoded, and that a pack's memory holds: of cells their squares.
  int64_t distinct_frames() const {
    int64_t of_inputs = 0;
    for (const auto& input : inputs) of_inputs += input->distinct_frames();
    if (!inputs.empty()) return of_inputs;
    if (media.tiles.empty() || !media.tiles.front().is_of_cells) return frames / copies;
    int64_t squares = 0;
    for (const TileGrid& image : media.tiles) squares += image.frames() * image.step_frames;
    return squares;
  }
  bool is_video_of_cells() const { return !media.tiles.empty() && media.tiles.front().is_of_video(); }
  size_t decoders() const { return 1 + further.size(); }
  // Of the images and videos whose cells the frames are, in order; other frames have none.
  std::vector<ImageGrid> grids() const { return grids_of(media.tiles); }

  // Decoder positions: of one text, its visual rows and its tokens; and of all texts, a teacher's included if it reads
  // them in a step. Where several decoders read the sample, those of the one that takes the most.
  int64_t visual_rows() const { return frames * rows_per_frame; }
  // In place of its placeholders, or before a text that has none.
  int64_t visual_rows(const SampleText& text) const {
    return text.placeholders > 0 ? text.placeholders : visual_rows();
  }
  int64_t rows(const SampleText& text) const { return visual_rows(text) + text.tokens(); }
  int64_t rows() const {
    int64_t all = 0;
    for (const auto& text : texts) all += rows(text);
    for (const auto& text : teacher_texts)
      if (!teacher_is_cached) all += text.tokens();
    for (const auto& input : inputs) all += input->rows();
    for (const auto& other : further) all = std::max(all, other->rows());
    return all;
  }
  int64_t teacher_rows() const {
    int64_t all = 0;
    for (const auto& text : teacher_texts) all += text.tokens();
    for (const auto& other : further) all = std::max(all, other->teacher_rows());
    return all;
  }
};

// As packs have it: its inputs, or the sample itself.
inline std::vector<std::shared_ptr<const Sample>> packed_parts(const std::shared_ptr<const Sample>& sample) {
  return sample->inputs.empty() ? std::vector{sample} : sample->inputs;
}

// The sample as one of the decoders reads it.
inline std::shared_ptr<const Sample> for_decoder(const std::shared_ptr<const Sample>& sample, size_t decoder) {
  return decoder == 0 ? sample : sample->further.at(decoder - 1);
}

} // namespace fvlm
