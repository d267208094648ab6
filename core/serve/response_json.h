// Answers as JSON, in the form of OpenAI's /v1/responses.
#pragma once
#include "serve/answer_json.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::serve {

// A response has one answer: an item of output for what it thinks, one for what it says, and one for each call of a
// tool. Each event has a name and a number; the last of them repeat all of the text.
class ResponseJson final : public AnswerDocuments {
 public:
  ResponseJson(const ChatRequest& request, const std::string& id, int64_t created);

  std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) override;
  void keep_attention(const FrameAttention& shown) override;
  std::string attention(const FrameAttention& shown) override; // in the events that have the response
  std::string piece(int64_t answer, const std::string& text, bool first,
                    const std::vector<TokenLogprob>& tokens) override;
  std::string thoughts(int64_t answer, const std::string& text, bool first) override;
  std::string call(int64_t answer, const ToolCall& call, bool first) override;
  std::string last_piece(int64_t answer, const AnswerText& ended) override;
  std::string end(const Usage& usage) override;
  std::string failure(const Error& error) override;

 private:
  std::string event(const char* type, nlohmann::json fields);
  std::string part_event(const char* type, nlohmann::json fields);
  std::string thought_event(const char* type, nlohmann::json fields);
  std::string begin(bool first);
  std::string begin_message();
  std::string end_thoughts(const char* status);
  bool has_message() const { return !answer_.text.empty() || (answer_.calls.empty() && answer_.thoughts.empty()); }
  size_t thought_items() const { return answer_.thoughts.empty() ? 0 : 1; }
  nlohmann::json thought_item(const char* status) const;
  nlohmann::json call_item(size_t number, const char* status) const;
  nlohmann::json response(const char* status) const;
  nlohmann::json ended(const Usage& usage) const;
  nlohmann::json item(const char* status, nlohmann::json content) const;
  nlohmann::json part() const;
  const char* status() const; // of an answer that has ended

  nlohmann::json shared_; // what all of them say of the request
  std::string item_id_;
  AnswerText answer_; // as far as it is known
  int64_t events_ = 0;
  bool message_begun_ = false, thoughts_ended_ = false;
  size_t message_at_ = 0; // among the items of output
  std::string id_;
};

} // namespace fvlm::serve
