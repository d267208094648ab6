// Calls of tools in the text of an answer, in the forms that chat templates write them in.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

struct ToolCall {
  std::string name;
  std::string arguments; // a JSON object
  bool operator==(const ToolCall&) const = default;
};

// A form: what stands around calls, and how they are written between.
struct ToolCallForm {
  const char* begin; // empty: the whole answer is a call
  const char* end;   // empty: calls reach to the end of the answer
  // Further texts of the form that a tokenizer may have as special tokens.
  std::vector<const char*> marks;
  // Nothing where the text between is no call. `tools`: those that may be called, whose parameters have types; null:
  // unknown.
  std::optional<std::vector<ToolCall>> (*read)(std::string_view text, const nlohmann::ordered_json* tools);
  const char* opening = ""; // the text between begins with it
  bool is_bare = false;     // it begins with the name alone: without `end` nobody knows whether a call is whole
};

// The form in which this text, that a template made of an answer, has a call of `name`; null: none that is known.
const ToolCallForm* tool_call_form(std::string_view rendered, std::string_view name);

// Tells calls from what is said in an answer, as its text comes.
class ToolCallReader {
 public:
  // All must outlive it.
  ToolCallReader(const ToolCallForm& form, const nlohmann::ordered_json* tools) : form_(form), tools_(tools) {}

  // What is said so far, without what may yet be a call. A call that cannot be read is said, and white space around
  // calls is not.
  std::string add(std::string_view piece);
  std::string finish(); // the rest
  std::vector<ToolCall> take_calls();

 private:
  void say(std::string_view text, std::string& out);
  void end_call(std::string_view inside, std::string_view whole, std::string& out);
  const ToolCallForm& form_;
  const nlohmann::ordered_json* tools_;
  std::string held_;
  std::string space_; // that was said last, and may stand before a call
  bool inside_ = false, said_ = false, called_ = false;
  std::vector<ToolCall> calls_;
};

} // namespace fvlm
