// Requests in the form of OpenAI's /v1/chat/completions and /v1/completions, and the JSON of their answers.
#pragma once
#include "data/own_template.h"
#include "data/tile_grid.h"
#include "infer/sampling.h"

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::serve {

struct RequestLimits {
  int64_t most_tokens = 4096; // of an answer
  int64_t most_images = 64;
  int64_t most_answers = 8; // n
  // What it takes to read the pictures and texts of a request, which holds up the answers of others.
  int64_t most_pixels = int64_t{96} << 20; // of all images together
  int64_t most_text = int64_t{1} << 20;    // bytes of all messages together
  int64_t most_messages = 4096;
};

// Pictures of a conversation, prepared as the model reads them.
struct PromptFrames {
  at::Tensor frames;           // [n, 3, H, W] float32, normalised; undefined: none
  std::vector<TileGrid> tiles; // of each image, where images are cut
  bool is_one_image = false;   // which is repeated
};

struct ChatRequest {
  std::string model;
  bool is_chat = true;                // otherwise a text is continued, which is turns[0]
  std::optional<std::string> system;  // empty text: none; nothing: the model's usual one
  std::vector<Turn> turns;            // <image> in a user's text for each image of it
  std::vector<std::string> images;    // the files, in the order of their marks
  std::optional<PromptFrames> frames; // in place of `images`, where they are prepared already
  std::vector<std::string> stops;
  infer::Sampling sampling;
  std::optional<int64_t> max_tokens;
  int64_t answers = 1;
  bool stream = false, stream_usage = false;
  std::optional<int64_t> top_logprobs; // of so many likeliest tokens besides the chosen one; nothing: none at all
  bool attention = false;              // an extension: show where the model looks in the frames
};

// Throw Error(usage) for what is not valid or not supported, at the field's name. Images are data URLs; nothing is
// fetched from a network or read from a file.
ChatRequest parse_chat(std::string_view body, const RequestLimits& limits);
ChatRequest parse_completion(std::string_view body, const RequestLimits& limits);

struct Usage {
  int64_t prompt = 0, completion = 0; // tokens; visual rows count as tokens of the prompt
  int64_t cached = 0;                 // of the prompt, that were computed for another one before
};

struct TokenLogprob {
  std::string token; // its bytes, which need not be whole characters
  double logprob = 0;
  std::vector<TokenLogprob> top; // the likeliest tokens in its place
};

struct AnswerText {
  std::string text;
  const char* finish = "stop";      // "length" for one that reached its most tokens
  std::vector<TokenLogprob> tokens; // of requests that ask for log-probabilities
};

// Where the model looked in the frames of a request.
struct FrameAttention {
  int64_t rows = 0, columns = 0;           // of the grid that a frame is read as
  std::vector<std::string> frames;         // as the model read them, JPEG
  std::vector<std::vector<double>> shares; // of each frame: the attention to each cell, row by row
};

// The documents of one answered request.
class AnswerJson {
 public:
  AnswerJson(const ChatRequest& request, std::string id, int64_t created)
      : model_(request.model), id_(std::move(id)), created_(created), is_chat_(request.is_chat),
        has_logprobs_(request.top_logprobs.has_value()) {}

  std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) const;
  // An extension of the documents, for requests that ask for it: an event of a stream, or a field of the whole.
  std::string attention(const FrameAttention& shown) const;
  void keep_attention(const FrameAttention& shown);
  // Events of a stream. The first piece of a chat's answer says whose turn it is.
  std::string piece(int64_t answer, const std::string& text, bool first, const std::vector<TokenLogprob>& tokens) const;
  std::string last_piece(int64_t answer, const char* finish) const;
  std::string usage(const Usage& usage) const;
  static std::string end_of_stream();

 private:
  nlohmann::json document(const char* chat_kind, nlohmann::json choices) const;
  std::string model_, id_;
  int64_t created_;
  bool is_chat_, has_logprobs_;
  nlohmann::json attention_; // null: not asked for
};

// {"error": {"message", "type", "param"}}
std::string error_json(const std::string& message, const char* type, const std::string& parameter = "");

} // namespace fvlm::serve
