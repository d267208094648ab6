#include "data/tool_calls.h"

#include "data/stop_texts.h"
#include "data/tool_call_texts.h"

#include <algorithm>
#include <utility>

namespace fvlm {
namespace {

constexpr const char* space = " \t\r\n";

const ToolCallForm forms[] = {
    {"<|tool_call_start|>", "<|tool_call_end|>", {}, read_python_calls},   // LFM2
    {"<|tool_call>", "<tool_call|>", {"<|\"|>"}, read_gemma_call},         // Gemma 4
    {"<|tool_call|>", "", {}, read_json_calls},                            // Granite
    {"[TOOL_CALLS]", "", {"[ARGS]", "[CALL_ID]"}, read_mistral_calls},     // Mistral
    {"<tool_call>", "</tool_call>", {}, read_function_call, "<function="}, // Qwen3.5
    {"<tool_call>", "</tool_call>", {}, read_glm_call, "", true},          // GLM
    {"<tool_call>", "</tool_call>", {}, read_json_calls},                  // Hermes, Qwen, SmolLM3
    {"", "", {"<|python_tag|>"}, read_whole_call},                         // Llama 3
};

} // namespace

const ToolCallForm* tool_call_form(std::string_view rendered, std::string_view name) {
  const size_t at = rendered.rfind(name); // before it the tools may be listed
  if (at == std::string_view::npos) return nullptr;
  for (const ToolCallForm& form : forms) {
    if (*form.begin) {
      const size_t begin = rendered.substr(0, at).rfind(form.begin);
      if (begin == std::string_view::npos) continue;
      const std::string_view inside = rendered.substr(begin + std::string_view(form.begin).size());
      if (inside.substr(inside.find_first_not_of(space)).starts_with(form.is_bare ? name : form.opening)) return &form;
      continue;
    }
    // Behind the last brace that opens before the name.
    const size_t brace = rendered.rfind('{', at);
    if (brace != std::string_view::npos && rendered.find("\"parameters\"", at) != std::string_view::npos &&
        rendered.substr(brace, at - brace).find("\"name\"") != std::string_view::npos)
      return &form;
  }
  return nullptr;
}

void ToolCallReader::say(std::string_view text, std::string& out) {
  space_ += text;
  const size_t last = space_.find_last_not_of(space);
  if (last == std::string::npos) return;
  out += space_.substr(0, last + 1);
  space_.erase(0, last + 1);
  called_ = false;
}

void ToolCallReader::end_call(std::string_view inside, std::string_view whole, std::string& out) {
  auto calls = form_.read(inside, tools_);
  if (!calls) return say(whole, out);
  std::move(calls->begin(), calls->end(), std::back_inserter(calls_));
  space_.clear();
  called_ = true;
}

std::string ToolCallReader::add(std::string_view piece) {
  held_ += piece;
  const std::string_view begin = form_.begin, end = form_.end;
  if (begin.empty()) { // what does not open as a call is said as it comes
    const size_t first = held_.find_first_not_of(space);
    said_ = said_ || (first != std::string::npos && held_[first] != '{' && held_[first] != '<');
    return said_ ? std::exchange(held_, "") : "";
  }
  std::string said;
  for (;;) {
    if (inside_) {
      const size_t at = end.empty() ? std::string::npos : held_.find(end, begin.size());
      if (at == std::string::npos) return said;
      const std::string whole = held_.substr(0, at + end.size());
      held_.erase(0, whole.size());
      end_call(std::string_view(whole).substr(begin.size(), at - begin.size()), whole, said);
    }
    const size_t at = held_.find(begin);
    inside_ = at != std::string::npos;
    const size_t free = inside_ ? at : held_.size() - begun_at_end(held_, begin);
    say(std::string_view(held_).substr(0, free), said);
    held_.erase(0, free);
    if (!inside_) return said;
  }
}

std::string ToolCallReader::finish() {
  const std::string rest = std::exchange(held_, ""), begin = form_.begin;
  std::string said;
  if ((inside_ && !form_.is_bare) || (begin.empty() && !said_ && !rest.empty()))
    end_call(std::string_view(rest).substr(begin.size()), rest, said);
  else
    say(rest, said);
  return called_ ? said : said + std::exchange(space_, "");
}

std::vector<ToolCall> ToolCallReader::take_calls() {
  return std::exchange(calls_, {});
}

} // namespace fvlm
