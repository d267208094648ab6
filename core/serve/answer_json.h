// Answers as JSON, in the form of OpenAI's /v1/chat/completions and /v1/completions.
#pragma once
#include "serve/chat_request.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::serve {

struct Usage {
  int64_t prompt = 0, completion = 0; // tokens; visual rows count as tokens of the prompt
  int64_t cached = 0;                 // of the prompt, that were computed for another one before
};

struct TokenLogprob {
  std::string token;             // its bytes, which need not be whole characters
  std::optional<double> logprob; // nothing: of the first token of a prompt
  int64_t offset = 0;            // of the answer's tokens: characters before it in the answer
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
  AnswerJson(const ChatRequest& request, std::string id, int64_t created);

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
  nlohmann::json logprobs(const std::vector<TokenLogprob>& tokens) const;
  std::string model_, id_;
  int64_t created_;
  bool is_chat_, has_logprobs_;
  std::string event_end_;    // of an event, behind its choices: the same in every one
  nlohmann::json attention_; // null: not asked for
};

// {"error": {"message", "type", "param"}}
std::string error_json(const std::string& message, const char* type, const std::string& parameter = "");

} // namespace fvlm::serve
