// Answers as JSON, in the form of Anthropic's /v1/messages.
#pragma once
#include "serve/answer_json.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::serve {

// A message has one answer: a block of content for what it thinks, for what it says, and for each call of a tool. In a
// stream one block ends before the next begins.
class MessageJson final : public AnswerDocuments {
 public:
  MessageJson(const ChatRequest& request, std::string id);

  std::string whole(const std::vector<AnswerText>& answers, const Usage& usage) override;
  void keep_attention(const FrameAttention& shown) override;
  std::string attention(const FrameAttention& shown) override;
  std::string piece(int64_t answer, const std::string& text, bool first,
                    const std::vector<TokenLogprob>& tokens) override;
  std::string thoughts(int64_t answer, const std::string& text, bool first) override;
  std::string call(int64_t answer, const ToolCall& call, bool first) override;
  std::string last_piece(int64_t answer, const AnswerText& ended) override;
  std::string end(const Usage& usage) override;
  std::string failure(const Error& error) override;

 private:
  nlohmann::json message(nlohmann::json content, const Usage& usage) const;
  nlohmann::json call_block(const ToolCall& call, int64_t number) const;
  std::string begin();
  std::string open_block(const std::string& type, nlohmann::json block);
  std::string delta(nlohmann::json delta) const;
  std::string close_block();

  std::string model_, id_;
  nlohmann::json attention_; // null: not asked for
  AnswerText ended_;         // how the answer did
  std::string open_;         // type of the block that has begun and not ended; empty: none
  int64_t blocks_ = 0, calls_ = 0;
  bool begun_ = false;
};

} // namespace fvlm::serve
