#include "train/synthetic_pack.h"

#include "base/random.h"
#include "recipe/placeholders.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

namespace fvlm::train {
namespace {

constexpr int64_t shortest_text = 2; // a token, and one to predict

// Random numbers one after the other.
class Draws {
 public:
  Draws(uint64_t seed, const char* what) : stream_(seed, what) {}

  SampleText text(int64_t tokens, int64_t vocabulary) {
    SampleText text;
    for (int64_t i = 0; i < tokens; ++i)
      text.ids.push_back(static_cast<TokenId>(next() % static_cast<uint64_t>(vocabulary)));
    text.answer_mask.assign(text.ids.size(), 1);
    return text;
  }
  void fill(std::span<uint8_t> bytes) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint32_t)) {
      const uint32_t bits = next();
      std::memcpy(bytes.data() + i, &bits, std::min(bytes.size() - i, sizeof bits));
    }
  }

 private:
  uint32_t next() { return stream_.bits(drawn_++); }
  RandomStream stream_;
  uint64_t drawn_ = 0;
};

// An image of so many cells that is as near to a square as whole sides allow: its windows are then those of a photo.
TileGrid image_of(int64_t cells) {
  int64_t rows = 1;
  for (int64_t side = 1; side * side <= cells; ++side)
    if (cells % side == 0) rows = side;
  return {.rows = rows, .columns = cells / rows, .is_of_cells = true};
}

void place(SampleText& text, const std::vector<TokenId>& placeholders, ptrdiff_t token) {
  text.placeholders = std::ssize(placeholders);
  text.ids.insert(text.ids.begin() + token, placeholders.begin(), placeholders.end());
  text.answer_mask.insert(text.answer_mask.begin() + token, placeholders.size(), 0);
}

// Places the first rows of each frame before the text.
void show_some(SampleText& text, const Sample& sample, int64_t rows) {
  std::vector<TokenId> placeholders;
  for (int64_t frame = 0; frame < sample.frames; ++frame)
    for (int64_t row = 0; row < rows; ++row)
      placeholders.push_back(numbered_placeholder(frame * sample.rows_per_frame + row));
  place(text, placeholders, 0);
}

// Places all rows of an image of cells behind the first token: positions on a canvas count from the token before an
// image.
void show_cells(SampleText& text, const Sample& sample) {
  place(text, std::vector<TokenId>(static_cast<size_t>(sample.frames * sample.rows_per_frame), visual_placeholder), 1);
}

// Makes queries of every other sample and their positives of those behind them; a last one without one is a negative.
void make_inputs(SyntheticPack& made) {
  using Role = Sample::Role;
  for (size_t i = 0; i < made.samples.size(); ++i) {
    auto input = std::make_shared<Sample>(*made.samples[i]);
    input->role = i % 2 == 1 ? Role::positive : i + 1 < made.samples.size() ? Role::query : Role::negative;
    for (SampleText& text : input->texts) text.answer_mask.assign(text.ids.size(), 0);
    made.samples[i] = made.host.samples[i].sample = std::move(input);
  }
}

} // namespace

SyntheticPack make_synthetic_samples(const plan::Stage& stage, const plan::VisualRows& visual_rows,
                                     const PackSize& size, int64_t most_samples,
                                     const std::vector<int64_t>& vocabularies, uint64_t number, int64_t shown_rows) {
  const bool shows_all = shown_rows == 0 || shown_rows >= visual_rows.per_frame;
  const int64_t rows_per_frame = shows_all ? visual_rows.per_frame : shown_rows, texts = stage.texts_per_frame(),
                readers = stage.packs_teacher_texts() ? 2 : 1,
                most_frames = stage.largest_sample(rows_per_frame).longest_video,
                most_tokens = std::max(stage.data.max_text_tokens, shortest_text),
                most = most_samples > 0 ? most_samples * (stage.embeds() ? stage.texts_per_sample() : 1)
                                        : std::numeric_limits<int64_t>::max();
  const auto with_frames = [&](int64_t frames) { return frames > 0 ? (frames + most_frames - 1) / most_frames : 0; };
  int64_t frames = most_frames > 0 ? size.frames : 0;
  while (frames > 0 && (with_frames(frames) > most ||
                        size.rows < texts * (frames * rows_per_frame + readers * shortest_text * with_frames(frames))))
    --frames;

  SyntheticPack made;
  Draws draws(number, "synthetic texts");
  int64_t waiting = with_frames(frames),
          rows = (size.rows / texts - frames * rows_per_frame) / readers; // of text, for each text of a sample
  while (rows >= shortest_text && static_cast<int64_t>(made.samples.size()) < most) {
    const int64_t of_sample = std::min(most_frames, frames - made.host.frame_count);
    const int64_t tokens = std::min(most_tokens, rows - shortest_text * std::max<int64_t>(0, waiting - 1));
    auto sample = std::make_shared<Sample>();
    sample->frames = std::max<int64_t>(0, of_sample);
    sample->rows_per_frame = visual_rows.per_frame;
    if (sample->frames > 0) sample->bytes.resize(static_cast<size_t>(visual_rows.max_bytes));
    if (sample->frames > 0 && visual_rows.of_cells) sample->media.tiles = {image_of(sample->frames)};
    draws.fill(sample->bytes);
    for (size_t decoder = 0; decoder < vocabularies.size(); ++decoder) {
      auto own = decoder == 0 ? sample : std::make_shared<Sample>(*sample);
      own->texts.clear();
      own->further.clear();
      for (int64_t i = 0; i < texts; ++i) own->texts.push_back(draws.text(tokens, vocabularies[decoder]));
      if (stage.packs_teacher_texts()) own->teacher_texts = own->texts;
      for (SampleText& text : own->texts) {
        if (!shows_all)
          show_some(text, *sample, rows_per_frame);
        else if (visual_rows.of_cells && visual_rows.in_place)
          show_cells(text, *sample);
      }
      if (decoder > 0) sample->further.push_back(std::move(own));
    }
    made.host.samples.push_back({static_cast<int64_t>(made.samples.size()), sample, made.host.frame_count});
    made.host.frame_count += sample->frames;
    made.samples.push_back(std::move(sample));
    rows -= tokens;
    --waiting;
  }
  if (stage.embeds()) make_inputs(made);
  return made;
}

SyntheticPack make_synthetic_pack(const plan::Stage& stage, const plan::VisualRows& visual_rows, const PackSize& size,
                                  int64_t most_samples, int64_t image_size, const std::vector<int64_t>& vocabularies,
                                  const AllocateHost& allocate, uint64_t number, int64_t shown_rows) {
  SyntheticPack made = make_synthetic_samples(stage, visual_rows, size, most_samples, vocabularies, number, shown_rows);
  const auto pixels = static_cast<size_t>(made.host.frame_count * 3 * image_size * image_size);
  if (pixels == 0 || visual_rows.max_bytes > 0) return made;
  made.host.buffer = allocate(pixels);
  auto* values = reinterpret_cast<uint8_t*>(made.host.buffer.get());
  Draws(number, "synthetic pixels").fill({values, pixels});
  made.host.pixels = {values, pixels};
  made.host.normalization = &imagenet_normalization();
  return made;
}

} // namespace fvlm::train
