// Requests in the form of OpenAI's /v1/chat/completions and /v1/completions, and the JSON of their answers.
#pragma once
#include "data/own_template.h"
#include "infer/sampling.h"

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
};

struct ChatRequest {
  std::string model;
  bool is_chat = true;               // otherwise a text is continued, which is turns[0]
  std::optional<std::string> system; // empty text: none; nothing: the model's usual one
  std::vector<Turn> turns;           // <image> in a user's text for each image of it
  std::vector<std::string> images;   // the files, in the order of their marks
  std::vector<std::string> stops;
  infer::Sampling sampling;
  std::optional<int64_t> max_tokens;
  int64_t answers = 1;
  bool stream = false, stream_usage = false;
};

// Throw Error(usage) for what is not valid or not supported, at the field's name. Images are data URLs; nothing is
// fetched from a network or read from a file.
ChatRequest parse_chat(std::string_view body, const RequestLimits& limits);
ChatRequest parse_completion(std::string_view body, const RequestLimits& limits);

// Decodes base64, of the usual alphabet and with padding. Throws Error(usage).
std::string decode_base64(std::string_view text);

struct Usage {
  int64_t prompt = 0, completion = 0; // tokens; visual rows count as tokens of the prompt
  int64_t cached = 0;                 // of the prompt, that were computed for another one before
};

struct AnswerText {
  std::string text;
  const char* finish = "stop"; // "length" for one that reached its most tokens
};

// The documents of one answered request.
class AnswerJson {
 public:
  AnswerJson(const ChatRequest& request, std::string id, int64_t created)
      : model_(request.model), id_(std::move(id)), created_(created), is_chat_(request.is_chat) {}

  std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) const;
  // Events of a stream. The first piece of a chat's answer says whose turn it is.
  std::string piece(int64_t answer, const std::string& text, bool first) const;
  std::string last_piece(int64_t answer, const char* finish) const;
  std::string usage(const Usage& usage) const;
  static std::string end_of_stream();

 private:
  nlohmann::json document(const char* chat_kind, nlohmann::json choices) const;
  std::string model_, id_;
  int64_t created_;
  bool is_chat_;
};

// {"error": {"message", "type", "param"}}
std::string error_json(const std::string& message, const char* type, const std::string& parameter = "");

} // namespace fvlm::serve
