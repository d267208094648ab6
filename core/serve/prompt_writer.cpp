#include "serve/prompt_writer.h"

#include "base/error.h"
#include "base/hash.h"
#include "data/media/write_image.h"
#include "data/visual_marks.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fvlm::serve {
namespace {

std::vector<std::string> keys_of(const PromptFrames& shown) {
  std::vector<std::string> keys;
  if (!shown.frames.defined()) return keys;
  const at::Tensor all = shown.frames.contiguous();
  const int64_t frames = all.size(0), bytes = static_cast<int64_t>(all.nbytes()) / std::max<int64_t>(1, frames);
  for (int64_t i = 0; i < frames; ++i)
    keys.insert(keys.end(), static_cast<size_t>(shown.copies),
                sha256_hex({static_cast<const char*>(all.const_data_ptr()) + i * bytes, static_cast<size_t>(bytes)}));
  return keys;
}

} // namespace

PromptFrames prompt_frames(const MediaFile& media, int64_t image_size, bool is_one_image) {
  at::Tensor frames = at::empty({media.distinct_frames(), 3, image_size, image_size}, at::kFloat);
  media.decode({frames.data_ptr<float>(), static_cast<size_t>(frames.numel())});
  return {frames, media.tiles(), is_one_image, media.copies()};
}

PromptWriter::PromptWriter(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows, PromptSettings settings)
    : tokenizer_(tokenizer), visual_rows_(visual_rows), settings_(std::move(settings)),
      chat_(tokenizer, visual_rows, settings_.chat_template) {}

// The key of a frame is its file and its place among the file's frames, which is less to read than its pixels are.
PromptFrames PromptWriter::decode(const std::vector<std::string>& images, std::vector<std::string>& keys) const {
  const FramePreparation& preparation = settings_.preparation;
  const int64_t size = preparation.image_size();
  const auto frame = static_cast<size_t>(3 * size * size);
  PromptFrames out;
  std::vector<float> pixels;
  for (size_t i = 0; i < images.size(); ++i) try {
      const auto file = std::as_bytes(std::span(images[i]));
      if (preparation.makes_tiles()) out.tiles.push_back(preparation.layout(file, std::ssize(images)).grid());
      const std::string digest = sha256_hex(images[i]);
      preparation.prepare_image(file, std::ssize(images), [&, tile = 0](std::span<const uint8_t> bytes) mutable {
        keys.push_back(fmt::format("{}.{}", digest, tile++));
        pixels.resize(pixels.size() + frame);
        preparation.normalise(bytes, std::span(pixels).last(frame));
      });
    } catch (const Error& error) {
      throw Error(ErrorKind::usage, "image {}: {}", i, error.what());
    }
  if (pixels.empty()) return out;
  out.is_one_image = images.size() == 1 && pixels.size() == frame && grids_of(out.tiles).empty();
  if (out.is_one_image) {
    out.copies = settings_.image_frames;
    keys.resize(static_cast<size_t>(out.copies), keys[0]);
  }
  out.frames = in_memory(pixels);
  return out;
}

at::Tensor PromptWriter::in_memory(const std::vector<float>& pixels) const {
  const int64_t size = settings_.preparation.image_size();
  const at::Tensor frames = at::empty({std::ssize(pixels) / (3 * size * size), 3, size, size},
                                      at::TensorOptions(at::kFloat).pinned_memory(settings_.pinned));
  std::ranges::copy(pixels, frames.data_ptr<float>());
  return frames;
}

PromptFrames PromptWriter::decode_video(const ChatRequest& request, std::vector<std::string>& keys) const {
  const FramePreparation& preparation = settings_.preparation;
  if (!preparation.has_cells())
    throw Error(ErrorKind::usage, "this model reads a video as its frames, each a part of type image_url")
        .advise("send {{\"type\": \"image_url\", ...}} for each frame, in order");
  const auto file_at = [&](int64_t frame) {
    return std::as_bytes(std::span(request.images[static_cast<size_t>(frame)]));
  };
  std::vector<double> times;
  std::string all;
  for (const std::string& image : request.images) {
    times.push_back(static_cast<double>(times.size()) / *request.video_fps);
    all += sha256_hex(image);
  }
  const std::string digest = sha256_hex(all);
  PromptFrames out;
  std::vector<float> pixels;
  try {
    preparation.require_videos();
    out.tiles = preparation.video_cells(FramePreparation::size_of(file_at(0)), times);
    preparation.prepare_pictures(
        std::ssize(times), [&](int64_t frame) { return FramePreparation::decoded(file_at(frame)); },
        [&](std::span<const uint8_t> bytes) {
          keys.push_back(fmt::format("{}.{}", digest, keys.size()));
          pixels.resize(pixels.size() + bytes.size());
          preparation.normalise(bytes, std::span(pixels).last(bytes.size()));
        });
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, "the video: {}", error.what()).advise(error.advice());
  }
  out.frames = in_memory(pixels);
  return out;
}

WrittenPrompt PromptWriter::write(const ChatRequest& request) const {
  WrittenPrompt written;
  if (request.frames && !request.frames->is_one_image) settings_.preparation.require_videos();
  const PromptFrames shown = request.frames      ? *request.frames
                             : request.video_fps ? decode_video(request, written.frame_keys)
                                                 : decode(request.images, written.frame_keys);
  if (request.frames) written.frame_keys = keys_of(shown);
  written.sample = {shown.frames, {}, shown.copies, grids_of(shown.tiles)};
  const int64_t frames = model::frames_of(written.sample);
  MarkedFrames marked{frames, visual_rows_.per_frame, shown.is_one_image, {}, {}};
  if (settings_.preparation.has_tile_text())
    add_tile_texts(marked, tokenizer_, settings_.preparation.tile_form(), shown.tiles);
  std::vector<Turn> turns = request.turns;
  if (!visual_rows_.in_place)
    for (Turn& turn : turns)
      if (turn.role == "user") turn.text = without_marks(turn.text);
  std::vector<TokenId> tokens = request.is_chat ? chat_.prompt(turns, request.system.value_or(settings_.system))
                                                : tokenizer_.encode(turns.at(0).text, SpecialTokens::as_text);
  std::vector<uint8_t> no_mask;
  if (visual_rows_.in_place) expand_marks(tokens, no_mask, marked);

  written.sample.texts.push_back({{tokens.begin(), tokens.end()}, {}});
  return written;
}

FrameAttention PromptWriter::attention_of(const model::Sample& sample, const at::Tensor& maps) const {
  const int64_t size = settings_.preparation.image_size(), side = size / settings_.patch_size, patches = side * side;
  // The last of a frame's tokens are its patches; before them is CLS.
  const at::Tensor means = maps.mean(at::IntArrayRef{1, 2}).to(at::kDouble).cpu();
  const at::Tensor cells = means.narrow(1, means.size(1) - patches, patches).contiguous();
  FrameAttention shown{side, side, {}, {}};
  for (int64_t i = 0; i < model::frames_of(sample); ++i) {
    const at::Tensor frame = sample.frames[i / sample.copies].contiguous();
    Image image{size, size, std::vector<uint8_t>(static_cast<size_t>(frame.numel()))};
    settings_.preparation.denormalise({frame.const_data_ptr<float>(), static_cast<size_t>(frame.numel())}, image.rgb);
    shown.frames.push_back(write_jpeg(image, 85));
    const double* const shares = cells.const_data_ptr<double>() + i * patches;
    auto& rounded = shown.shares.emplace_back();
    for (int64_t cell = 0; cell < patches; ++cell) rounded.push_back(std::round(shares[cell] * 1e5) / 1e5);
  }
  return shown;
}

} // namespace fvlm::serve
