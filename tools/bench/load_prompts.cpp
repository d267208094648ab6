#include "bench/load_prompts.h"

#include "base/base64.h"
#include "base/file.h"
#include "base/random.h"
#include "data/media/write_image.h"
#include "data/unicode.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace fvlm::bench {
namespace {

constexpr std::array words = {"the",  "a",    "cat",  "dog",  "what", "who",  "is",   "was",  "on",   "in",  "of",
                              "red",  "blue", "old",  "new",  "tree", "car",  "man",  "sea",  "sky",  "day", "sun",
                              "rain", "left", "door", "road", "this", "that", "with", "from", "many", "one"};

std::string in_byte_alphabet(const std::string& bytes) {
  std::string written;
  for (const char byte : bytes) append_utf8(written, byte_alphabet().point_of_byte[static_cast<uint8_t>(byte)]);
  return written;
}

} // namespace

std::string made_picture(uint64_t seed, int64_t number, int64_t side) {
  const RandomStream random(seed, fmt::format("picture {}", number));
  Image image{side, side, std::vector<uint8_t>(static_cast<size_t>(3 * side * side))};
  const uint32_t slope = random.bits(0);
  for (int64_t y = 0; y < side; ++y)
    for (int64_t x = 0; x < side; ++x)
      for (int64_t channel = 0; channel < 3; ++channel)
        image.rgb[static_cast<size_t>((y * side + x) * 3 + channel)] = static_cast<uint8_t>(
            (x * (slope >> (4 * channel) & 15) + y * (slope >> (12 + 4 * channel) & 15)) * 64 / side);
  for (uint64_t shape = 1; shape <= 6; ++shape) {
    const auto draw = [&](uint64_t which) {
      return static_cast<int64_t>(random.uniform(8 * shape + which) * static_cast<double>(side));
    };
    const int64_t left = draw(0), top = draw(1), right = std::min(side, left + draw(2) / 2),
                  bottom = std::min(side, top + draw(3) / 2);
    const uint32_t colour = random.bits(8 * shape + 4);
    for (int64_t y = top; y < bottom; ++y)
      for (int64_t x = left; x < right; ++x)
        for (int64_t channel = 0; channel < 3; ++channel)
          image.rgb[static_cast<size_t>((y * side + x) * 3 + channel)] = static_cast<uint8_t>(colour >> (8 * channel));
  }
  return write_jpeg(image, 85);
}

std::string load_request(const LoadPrompts& prompts, int64_t number) {
  const RandomStream random(prompts.seed, fmt::format("question {}", number));
  std::string text;
  for (int64_t word = 0; word < prompts.prompt; ++word)
    text += fmt::format(" {}", words[random.bits(static_cast<uint64_t>(word) + 1) % words.size()]);
  nlohmann::json content = nlohmann::json::array();
  if (random.uniform(0) < prompts.images)
    content.push_back(
        {{"type", "image_url"},
         {"image_url",
          {{"url", "data:image/jpeg;base64," + encode_base64(made_picture(prompts.seed, number, prompts.picture))}}}});
  content.push_back({{"type", "text"}, {"text", text}});
  const nlohmann::json body = {
      {"messages", nlohmann::json::array({{{"role", "user"}, {"content", std::move(content)}}})},
      {"max_tokens", prompts.answer},
      {"temperature", prompts.temperature},
      {"seed", number},
      {"stream", true},
      {"stream_options", {{"include_usage", true}}}};
  return body.dump();
}

void write_tokenizer(const std::filesystem::path& model, int64_t vocabulary) {
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  const auto add = [&](const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  };
  for (int byte = 0; byte < 256; ++byte) add(in_byte_alphabet(std::string(1, static_cast<char>(byte))));
  for (const std::string word : words) { // " cat" is read as " c", then " ca", then all of it
    std::string read = in_byte_alphabet(" ");
    for (const char letter : word) {
      const nlohmann::json merge = nlohmann::json::array({read, std::string(1, letter)});
      if (std::ranges::find(merges, merge) == merges.end()) merges.push_back(merge);
      add(read += letter);
    }
  }
  constexpr std::array special = {"<|im_start|>", "<|im_end|>"};
  for (int64_t number = 0; std::ssize(vocab) + std::ssize(special) < vocabulary; ++number)
    add(in_byte_alphabet(fmt::format(" w{}", number)));
  nlohmann::json added = nlohmann::json::array();
  for (const char* token : special)
    added.push_back({{"id", vocab.size() + added.size()}, {"content", token}, {"special", true}});
  const nlohmann::json tokenizer = {
      {"added_tokens", added},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}}}};
  write_file_atomic(model / "decoder" / "tokenizer.json", tokenizer.dump());
  write_file_atomic(model / "decoder" / "generation_config.json", R"({"eos_token_id": []})");
}

} // namespace fvlm::bench
