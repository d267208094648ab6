#include "serve/prompt_writer.h"

#include "base/error.h"
#include "data/visual_marks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::serve {

PromptWriter::PromptWriter(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows, PromptSettings settings)
    : tokenizer_(tokenizer), visual_rows_(visual_rows), settings_(std::move(settings)),
      chat_(tokenizer, visual_rows, settings_.chat_template) {}

model::Sample PromptWriter::write(const ChatRequest& request) const {
  const FramePreparation& preparation = settings_.preparation;
  const size_t frame = static_cast<size_t>(3 * preparation.image_size() * preparation.image_size());
  std::vector<float> pixels;
  std::vector<TileGrid> tiles;
  for (size_t i = 0; i < request.images.size(); ++i) try {
      const auto file = std::as_bytes(std::span(request.images[i]));
      if (preparation.makes_tiles()) tiles.push_back(preparation.layout(file).grid());
      preparation.prepare_image(file, [&](std::span<const uint8_t> bytes) {
        pixels.resize(pixels.size() + frame);
        preparation.normalise(bytes, std::span(pixels).last(frame));
      });
    } catch (const Error& error) {
      throw Error(ErrorKind::usage, fmt::format("image {}: {}", i, error.what()));
    }
  auto frames = static_cast<int64_t>(pixels.size() / frame);
  const bool is_one_image = request.images.size() == 1 && frames == 1;
  if (is_one_image) frames = settings_.image_frames;

  MarkedFrames marked{frames, visual_rows_.per_frame, is_one_image, {}};
  if (preparation.has_tile_text()) marked.images = tile_texts(tokenizer_, tiles, frames, visual_rows_.per_frame);
  std::vector<Turn> turns = request.turns;
  if (!visual_rows_.in_place)
    for (Turn& turn : turns) turn.text = without_marks(turn.text);
  std::vector<TokenId> tokens = request.is_chat ? chat_.prompt(turns, request.system.value_or(settings_.system))
                                                : tokenizer_.encode(turns.at(0).text, SpecialTokens::as_text);
  std::vector<uint8_t> no_mask;
  if (visual_rows_.in_place) expand_marks(tokens, no_mask, marked);

  model::Sample sample;
  sample.texts.push_back({{tokens.begin(), tokens.end()}, {}});
  if (frames == 0) return sample;
  sample.frames = at::empty({frames, 3, preparation.image_size(), preparation.image_size()}, at::kFloat);
  for (int64_t i = 0; i < frames; ++i) // the only image as often as it is repeated
    std::copy_n(pixels.begin() + static_cast<std::ptrdiff_t>(is_one_image ? 0 : static_cast<size_t>(i) * frame), frame,
                sample.frames.data_ptr<float>() + static_cast<size_t>(i) * frame);
  return sample;
}

} // namespace fvlm::serve
