#include "serve/prompt_writer.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/media/write_image.h"
#include "data/streaming_detokenizer.h"
#include "data/video_text.h"
#include "data/visual_marks.h"
#include "serve/call_grammar.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

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

// Those that the request sets itself go before what follows from its effort.
nlohmann::json variables_of(const ChatRequest& request, const std::optional<ThinkingSwitch>& thinking) {
  const std::string& effort = request.reasoning_effort;
  nlohmann::json variables = nlohmann::json::object();
  if (!effort.empty()) variables["reasoning_effort"] = effort;
  if (!effort.empty() && thinking) variables[thinking->variable] = effort != "none" && effort != "minimal";
  if (request.template_variables) variables.update(*request.template_variables);
  return variables;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

} // namespace

PromptFrames prompt_frames(const MediaFile& media, const FramePreparation& preparation, bool is_one_image) {
  const int64_t image_size = preparation.image_size();
  at::Tensor frames = at::empty({media.distinct_frames(), 3, image_size, image_size}, at::kFloat);
  media.decode({frames.data_ptr<float>(), static_cast<size_t>(frames.numel())});
  const bool is_told = preparation.has_video_text() && !media.times().empty();
  return {frames, media.tiles(), is_one_image, media.copies(),
          is_told ? video_text(media.times(), media.seconds()) : ""};
}

PromptWriter::PromptWriter(const Tokenizer& tokenizer, const plan::VisualRows& visual_rows, PromptSettings settings)
    : tokenizer_(tokenizer), visual_rows_(visual_rows), settings_(std::move(settings)), embedding_tokens_(tokenizer),
      special_(special_texts(tokenizer)),
      chat_with_tools_(settings_.chat_template ? std::nullopt : chatml_with_tools(tokenizer, visual_rows)) {
  try {
    chat_.emplace(tokenizer, visual_rows, settings_.chat_template);
  } catch (const Error& error) {
    no_chat_ = error;
  }
}

const ChatTemplate& PromptWriter::chat() const {
  if (no_chat_) throw *no_chat_;
  return *chat_;
}

// The key of a frame is its file and its place among the file's frames, which is less to read than its pixels are.
PromptFrames PromptWriter::decode(const ChatRequest& request, std::vector<std::string>& keys) const {
  Decoded decoded{{}, {}, keys};
  const std::span<const std::string> files(request.images);
  const size_t of_video = request.video ? std::max<size_t>(request.video->frames, 1) : 0;
  const auto images = static_cast<int64_t>(files.size() - of_video);
  for (size_t i = 0; i < files.size();) {
    const bool is_video = request.video && request.video->first == i;
    try {
      if (!is_video)
        decode_image(files[i], images, decoded);
      else if (request.video->frames == 0)
        decode_video(files[i], *request.video, decoded);
      else
        decode_frames(files.subspan(i, of_video), request.video->per_second, decoded);
    } catch (const Error& error) {
      const std::string which = is_video ? "the video" : fmt::format("image {}", i);
      throw Error(ErrorKind::usage, "{}: {}", which, error.what()).advise(error.advice());
    }
    i += is_video ? of_video : 1;
  }
  PromptFrames& out = decoded.out;
  if (decoded.pixels.empty()) return out;
  const int64_t size = settings_.preparation.image_size();
  const bool is_one_frame = std::ssize(decoded.pixels) == 3 * size * size;
  out.is_one_image = files.size() == 1 && !request.video && is_one_frame && grids_of(out.tiles).empty();
  if (out.is_one_image) {
    out.copies = settings_.image_frames;
    keys.resize(static_cast<size_t>(out.copies), keys[0]);
  }
  out.frames = in_memory(decoded.pixels);
  return out;
}

void PromptWriter::decode_image(const std::string& image, int64_t images, Decoded& to) const {
  const FramePreparation& preparation = settings_.preparation;
  const auto file = std::as_bytes(std::span(image));
  if (preparation.makes_tiles()) to.out.tiles.push_back(preparation.layout(file, images).grid());
  const std::string digest = sha256_hex(image);
  preparation.prepare_image(file, images, [&, tile = 0](std::span<const uint8_t> bytes) mutable {
    to.keys.push_back(fmt::format("{}.{}", digest, tile++));
    to.pixels.resize(to.pixels.size() + bytes.size());
    preparation.normalise(bytes, std::span(to.pixels).last(bytes.size()));
  });
}

void PromptWriter::decode_video(const std::string& file, const RequestVideo& video, Decoded& to) const {
  if (!settings_.videos) throw Error(ErrorKind::usage, "nothing decodes files of videos here");
  const MediaFile media = video.source ? MediaFile(video.source, *settings_.videos)
                                       : MediaFile(std::as_bytes(std::span(file)), *settings_.videos);
  if (media.pixels() > settings_.most_pixels)
    throw Error(ErrorKind::usage, "its {} have {} pixels together, more than {}",
                counted(std::ssize(media.times()), "frame"), grouped(media.pixels()), grouped(settings_.most_pixels))
        .advise("send it smaller or shorter");
  const PromptFrames frames = prompt_frames(media, settings_.preparation, false);
  const float* const values = frames.frames.const_data_ptr<float>();
  to.pixels.insert(to.pixels.end(), values, values + frames.frames.numel());
  to.out.tiles.insert(to.out.tiles.end(), frames.tiles.begin(), frames.tiles.end());
  to.out.video_text = frames.video_text;
  if (!frames.video_text.empty()) to.out.tiles.resize(to.out.tiles.size() + media.times().size()); // not cut
  const std::string digest = sha256_hex(video.source ? "file " + video.source_name : file);
  for (int64_t i = 0; i < media.distinct_frames(); ++i) to.keys.push_back(fmt::format("{}.{}", digest, i));
}

void PromptWriter::decode_frames(std::span<const std::string> files, double per_second, Decoded& to) const {
  const FramePreparation& preparation = settings_.preparation;
  if (!preparation.processor()) {
    for (const std::string& file : files) decode_image(file, std::ssize(files), to);
    return;
  }
  const auto file_at = [&](int64_t frame) { return std::as_bytes(std::span(files[static_cast<size_t>(frame)])); };
  std::vector<double> times;
  std::string all;
  for (const std::string& file : files) {
    times.push_back(static_cast<double>(times.size()) / per_second);
    all += sha256_hex(file);
  }
  const std::string digest = sha256_hex(all);
  preparation.require_videos();
  if (preparation.has_cells()) to.out.tiles = preparation.video_cells(FramePreparation::size_of(file_at(0)), times);
  preparation.prepare_pictures(
      std::ssize(times), [&](int64_t frame) { return FramePreparation::decoded(file_at(frame)); },
      [&, frame = 0](std::span<const uint8_t> bytes) mutable {
        to.keys.push_back(fmt::format("{}.{}", digest, frame++));
        to.pixels.resize(to.pixels.size() + bytes.size());
        preparation.normalise(bytes, std::span(to.pixels).last(bytes.size()));
      });
  if (!preparation.has_video_text()) return;
  to.out.video_text = video_text(times, times.back());
  to.out.tiles.resize(to.out.tiles.size() + times.size()); // not cut
}

at::Tensor PromptWriter::in_memory(const std::vector<float>& pixels) const {
  const int64_t size = settings_.preparation.image_size();
  at::Tensor frames = at::empty({std::ssize(pixels) / (3 * size * size), 3, size, size},
                                at::TensorOptions(at::kFloat).pinned_memory(settings_.pinned));
  std::ranges::copy(pixels, frames.data_ptr<float>());
  return frames;
}

void PromptWriter::require_known(std::span<const TokenId> tokens, const char* field) const {
  for (const TokenId token : tokens)
    if (static_cast<size_t>(token) >= tokenizer_.size())
      throw Error(ErrorKind::usage, "{}: token {} is beyond the {} of the model's tokenizer", field, token,
                  tokenizer_.size())
          .at(field)
          .advise("send tokens of this model's own tokenizer, or the text");
}

std::string PromptWriter::text_of(std::span<const TokenId> tokens, const char* field) const {
  require_known(tokens, field);
  return tokenizer_.decode(tokens);
}

std::vector<TokenId> PromptWriter::continued(const ChatRequest& request, WrittenPrompt& written) const {
  if (request.tokens.empty()) {
    const std::string& text = request.turns.at(0).text;
    if (request.echo) written.echo = text;
    return request.embedding ? embedding_tokens_.of(text).ids : tokenizer_.encode(text);
  }
  require_known(request.tokens, request.embedding ? "input" : "prompt");
  if (request.echo) written.echo = tokenizer_.decode(request.tokens);
  return request.tokens;
}

std::vector<TokenId> PromptWriter::prompt(const ChatRequest& request, std::span<const Turn> turns,
                                          WrittenPrompt& written) const {
  const std::string& system = request.system ? *request.system : settings_.system;
  if (no_chat_)
    throw Error(ErrorKind::usage, "the model has no chat template: {}", no_chat_->what())
        .at("messages")
        .advise("send the whole prompt to /v1/completions");
  const bool has_calls = std::ranges::any_of(turns, [](const Turn& turn) { return turn.fields != nullptr; });
  const ChatTemplate& chat = chat_with_tools_ && (request.tools || has_calls) ? *chat_with_tools_ : this->chat();
  written.tool_calls = request.tools ? chat.tool_call_form() : nullptr;
  if ((request.tools || has_calls) && !chat.tool_call_form())
    throw Error(ErrorKind::usage, "{}: the model's chat template calls no tools, or in a form that is not known here",
                request.tools ? "tools" : "messages")
        .at(request.tools ? "tools" : "messages")
        .advise("response_format makes an answer fit a JSON schema, in /v1/responses text.format");
  if (request.form && request.tools && !request.tools->only) {
    written.call_begin = call_begin(*written.tool_calls);
    written.calls =
        std::make_shared<const grammar::Grammar>(grammar_of_calls(tokenizer_, *written.tool_calls, *request.tools));
  }
  const nlohmann::json variables = variables_of(request, chat.thinking_switch());
  TemplateValues values{.tools = request.tools ? &request.tools->list : nullptr, .variables = &variables};
  // An embedding is to be the same every day, and that which was trained.
  if (settings_.has_date && !request.embedding) values.now = local_time();
  std::vector<TokenId> tokens = chat.prompt(turns, system, values);
  written.thinking = chat.thinking_behind(tokens);
  return tokens;
}

TokenId PromptWriter::call_begin(const ToolCallForm& form) const {
  if (const auto token = tokenizer_.added_id(form.begin)) return *token;
  throw Error(ErrorKind::usage, "tools: beside a form of the answer (response_format, in /v1/responses text.format, or "
                                "structured_outputs) a call has to begin with one token, and this model's do not")
      .at("tools")
      .advise("leave the form out, or set tool_choice to \"none\" or \"required\"");
}

grammar::Preface PromptWriter::preface_of(const Thinking& thinking) const {
  if (!thinking.tags) return {};
  return {tokenizer_.added_id(thinking.tags->begin), tokenizer_.added_id(thinking.tags->end), thinking.tags->end,
          thinking.is_open};
}

WrittenPrompt PromptWriter::write(const ChatRequest& request) const {
  WrittenPrompt written;
  if (visual_rows_.text_only && (request.frames || !request.images.empty()))
    throw Error(ErrorKind::usage, "the model reads text alone, and got pictures");
  if (request.frames && !request.frames->is_one_image) settings_.preparation.require_videos();
  const PromptFrames shown = request.frames ? *request.frames : decode(request, written.frame_keys);
  if (request.frames) written.frame_keys = keys_of(shown);
  written.sample = {shown.frames, {}, shown.copies, grids_of(shown.tiles)};
  const int64_t frames = model::frames_of(written.sample);
  MarkedFrames marked{frames, visual_rows_.per_frame, shown.is_one_image, {}, {}};
  if (settings_.preparation.has_tile_text())
    add_tile_texts(marked, tokenizer_, settings_.preparation.tile_form(), shown.tiles);
  std::vector<Turn> turns = request.turns;
  const std::vector<std::string_view> spelled(special_.begin(), special_.end());
  if (request.spells_special_tokens)
    for (Turn& turn : turns)
      if (turn.tokens.empty()) turn.tokens = spelled;
  if (!shown.video_text.empty()) write_video(turns, shown.video_text, request.video.has_value());
  if (!visual_rows_.in_place)
    for (Turn& turn : turns)
      if (turn.role == "user") turn.text = words_as_spelled(without_marks(turn.text));
  std::vector<TokenId> tokens = request.is_chat ? prompt(request, turns, written) : continued(request, written);
  std::vector<uint8_t> no_mask;
  if (visual_rows_.in_place) expand_marks(tokens, no_mask, marked);

  if (request.echo && !tokens.empty()) written.first_token = tokens.front();
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
