// Answers as JSON, in the form of OpenAI's API; that of /v1/responses is in response_json.h.
#pragma once
#include "base/error.h"
#include "data/tool_calls.h"
#include "serve/chat_request.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::serve {

struct Usage {
  int64_t prompt = 0, completion = 0; // tokens; visual rows count as tokens of the prompt
  int64_t thoughts = 0;               // of the completion, with the tags around them
  int64_t cached = 0;                 // of the prompt, that were computed for another one before
};

struct TokenLogprob {
  std::string token;             // its bytes, which need not be whole characters
  std::optional<double> logprob; // nothing: of the first token of a prompt
  int64_t offset = 0;            // of the answer's tokens: characters before it in the answer
  std::vector<TokenLogprob> top; // the likeliest tokens in its place
};

struct AnswerText {
  std::string thoughts, text;
  std::vector<ToolCall> calls;
  std::string stop_text;            // of the request, at which it ended; empty: at none
  const char* finish = "stop";      // "length" for one that reached its most tokens, "tool_calls" for one with calls
  std::vector<TokenLogprob> tokens; // of requests that ask for log-probabilities
};

// Where the model looked in the frames of a request.
struct FrameAttention {
  int64_t rows = 0, columns = 0;           // of the grid that a frame is read as
  std::vector<std::string> frames;         // as the model read them, JPEG
  std::vector<std::vector<double>> shares; // of each frame: the attention to each cell, row by row
};

// The documents of one answered request: one of a whole answer, or the events of a stream in their order.
class AnswerDocuments {
 public:
  virtual ~AnswerDocuments() = default;

  virtual std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) = 0;
  // An extension of the documents, for requests that ask for it: a field of the whole, or an event, if it is not empty.
  virtual void keep_attention(const FrameAttention& shown) = 0;
  virtual std::string attention(const FrameAttention& shown) = 0;
  // `first`: of this answer.
  virtual std::string piece(int64_t answer, const std::string& text, bool first,
                            const std::vector<TokenLogprob>& tokens) = 0;
  // Thoughts, which come before pieces and calls.
  virtual std::string thoughts(int64_t answer, const std::string& text, bool first) = 0;
  // A call of a tool, the answer's next one. `first`: nothing of this answer was said.
  virtual std::string call(int64_t answer, const ToolCall& call, bool first) = 0;
  // `ended`: how it did; what it says was in pieces.
  virtual std::string last_piece(int64_t answer, const AnswerText& ended) = 0;
  // The end of the stream: of all answers, or of one that failed behind its first event.
  virtual std::string end(const Usage& usage) = 0;
  virtual std::string failure(const Error& error) = 0;

 protected:
  AnswerDocuments() = default;
  AnswerDocuments(const AnswerDocuments&) = default;
  AnswerDocuments& operator=(const AnswerDocuments&) = default;
};

// In the form of /v1/chat/completions and /v1/completions.
class AnswerJson final : public AnswerDocuments {
 public:
  AnswerJson(const ChatRequest& request, std::string id, int64_t created);

  std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) override;
  void keep_attention(const FrameAttention& shown) override;
  std::string attention(const FrameAttention& shown) override;
  // The first piece of a chat's answer says whose turn it is.
  std::string piece(int64_t answer, const std::string& text, bool first,
                    const std::vector<TokenLogprob>& tokens) override;
  std::string thoughts(int64_t answer, const std::string& text, bool first) override;
  std::string call(int64_t answer, const ToolCall& call, bool first) override;
  std::string last_piece(int64_t answer, const AnswerText& ended) override;
  std::string end(const Usage& usage) override;
  std::string failure(const Error& error) override;

 private:
  nlohmann::json call_json(const ToolCall& call, int64_t answer, size_t number) const;
  nlohmann::json document(const char* chat_kind, nlohmann::json choices) const;
  nlohmann::json logprobs(const std::vector<TokenLogprob>& tokens) const;
  std::string model_, id_;
  int64_t created_;
  bool is_chat_, has_logprobs_, has_usage_;
  std::string event_end_;             // of an event, behind its choices: the same in every one
  nlohmann::json attention_;          // null: not asked for
  std::map<int64_t, int64_t> called_; // by answer, how many calls its stream had
};

// What the forms share. Generated text may end in the middle of a character, which is replaced.
std::string dumped(const nlohmann::json& document);
nlohmann::json json_of(const FrameAttention& shown);
// An id that is unique to this call of this answer; nine letters and digits, as Mistral's templates want them.
std::string call_id(const std::string& request, int64_t answer, int64_t number);
nlohmann::json logprobs_json(const std::vector<TokenLogprob>& tokens); // a list, but for continued texts

int http_status_of(const Error& error);
std::string message_of(const Error& error);                  // with its advice
inline constexpr const char* json_type = "application/json"; // the Content-Type of all of these
std::string error_json(const Error& error);
// {"type": "error", "error": {"message", "type", "param", "code"}}, as OpenAI's clients read it and Anthropic's
std::string error_json(const std::string& message, const char* type, const std::string& parameter = "",
                       const std::string& code = "");

} // namespace fvlm::serve
