// The fields of a request's JSON, each read with its type and range.
#pragma once
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::serve {

// OpenAI's /v1/chat/completions, /v1/completions and /v1/responses, and Anthropic's /v1/messages, whose requests are
// read as chats.
enum class ApiForm { chat, completion, response, message };

// A usage error at a field.
Error wrong_field(const std::string& field, const std::string& what);
// The object that a request's body is. Throws Error(usage).
nlohmann::json object_of(std::string_view body);
// A value as a message shows it.
std::string shortened(const nlohmann::json& value);

// At most `most` tokens. Throws Error(usage) at `where`.
std::vector<int64_t> tokens_of(const nlohmann::json& list, const std::string& where, int64_t most);

// Of one object, which outlives it. A field that is null is not there. All throw Error(usage) at the field.
class RequestFields {
 public:
  // `where`: of the object in the request, for messages; empty: it is the request.
  explicit RequestFields(const nlohmann::json& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  const nlohmann::json* find(const char* name) const; // null: it is not there
  double number(const char* name, double usual, double least, double most) const;
  // 3.0 is 3.
  std::optional<int64_t> integer(const char* name, int64_t least, int64_t most) const;
  bool flag(const char* name) const;
  std::string text(const char* name) const;
  // Refuses what would change an answer and is not there, unless it asks for nothing.
  void refuse(std::initializer_list<const char*> names) const;
  // Refuses those that are longer than `most` bytes of JSON.
  void limit(std::initializer_list<const char*> names, int64_t most) const;
  // Whether the field is there and asks for something.
  bool asks(const char* name) const;
  // The object with all keys in the order of `body`, of which it was read. Throws Error(usage) where an object within
  // has more keys than any of a request's, as looking for one takes long.
  nlohmann::ordered_json in_order(std::string_view body) const;

 private:
  std::string place_of(const char* name) const;
  const nlohmann::json& object_;
  std::string where_;
};

// Refuses fields of a request that would change an answer and are not there. Others are ignored.
void refuse_unsupported(const RequestFields& fields, ApiForm form);

} // namespace fvlm::serve
