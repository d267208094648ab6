// Questions that a load generator makes up, with pictures, and a tokenizer for models that have none.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace fvlm::bench {

struct LoadPrompts {
  int64_t prompt = 72, answer = 128; // words of a question; tokens of its answer at most
  double images = 0.5;               // share of questions about a picture
  int64_t picture = 448;             // pixels a side
  double temperature = 0;
  uint64_t seed = 0;
};

// The body of a streamed request to /v1/chat/completions. Each number is another question, about another
// picture.
std::string load_request(const LoadPrompts& prompts, int64_t number);
// A JPEG of a gradient and rectangles.
std::string made_picture(uint64_t seed, int64_t number, int64_t side);

// Writes tokenizer.json and generation_config.json into the decoder's folder of a model directory that has none: bytes,
// the words of load_request(), of which each is a token, and made-up words for the other tokens. No token ends an
// answer.
void write_tokenizer(const std::filesystem::path& model, int64_t vocabulary);

} // namespace fvlm::bench
