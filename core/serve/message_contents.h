// The contents of a conversation's messages: texts, images and videos.
#pragma once
#include "serve/chat_request.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fvlm::serve {

// Reads the contents of messages, and counts what they hold together. All throw Error(usage) at `where`.
class Contents {
 public:
  // Both must outlive it.
  Contents(ChatRequest& request, const RequestLimits& limits) : request_(request), limits_(limits) {}

  // Messages, which become the request's turns, and the first one of the system its system text unless it has one.
  // `where`: the field that has them.
  void add_messages(const nlohmann::json& messages, const std::string& where);
  // The same of /v1/responses, whose items may be other than messages, which are refused.
  void add_items(const nlohmann::json& items, const std::string& where);
  // In a user's message <image> and <video> are words. Elsewhere they mean nothing as they are.
  std::string text(std::string text, const std::string& where, bool is_users);
  std::vector<TokenId> tokens(const nlohmann::json& list, const std::string& where);

 private:
  void add_message(const nlohmann::json& message, bool is_first, const std::string& where);
  std::string said(const nlohmann::json& message, const std::string& where);
  void add_calls(const nlohmann::json& message, const std::string& where);
  void add_result(const nlohmann::json& message, const std::string& where);
  std::string read(const nlohmann::json& content, const std::string& where, const std::string& role);
  std::string read_part(const nlohmann::json& part, const std::string& where, const std::string& role);
  void add_video(const nlohmann::json& part, const std::string& type, const std::string& where);
  void add_image(std::string file, const std::string& where);

  ChatRequest& request_;
  const RequestLimits& limits_;
  int64_t pixels_ = 0, bytes_ = 0;
  std::map<std::string, std::string> tools_by_call_; // by the id of a call
};

} // namespace fvlm::serve
