#include "data/samples/other_names.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace fvlm {
namespace {

bool says_something(const nlohmann::json* value) {
  return value && !(value->is_string() && trimmed(value->get_ref<const std::string&>()).empty());
}

} // namespace

std::string question_part(const Parts& parts) {
  std::vector<std::string> found;
  std::ranges::copy_if(question_keys, std::back_inserter(found),
                       [&](const char* key) { return says_something(parts.find(key)); });
  if (found.size() > 1)
    throw Error(ErrorKind::data, "it has '{}' and '{}', and no 'user' that says which of them is asked", found[0],
                found[1])
        .advise("the source's {} says so", written_fields({{"user", found[0]}}));
  return found.empty() ? "" : found.front();
}

std::string user_text(const Parts& parts) {
  const std::string part = parts.is_mapped("user") || parts.has("user") ? "user" : question_part(parts);
  if (part.empty()) return "";
  std::string text = parts.text(part).value_or("");
  if (parts.key(part) != "instruction" || parts.is_named("input")) return text;
  const std::string input = parts.text("input").value_or("");
  if (trimmed(input).empty()) return text;
  return trimmed(text).empty() ? input : text + "\n" + input;
}

Parts::Fields fields_of_other_names(const Parts& parts) {
  const auto first = [&](std::span<const char* const> names) {
    const auto found = std::ranges::find_if(names, [&](const char* name) { return parts.has(name); });
    return found == names.end() ? nullptr : *found;
  };
  const char *question = first(question_keys), *answer = first(answer_keys);
  if (!question && parts.has("input")) question = "input";
  const char* caption = first(std::array{"text", "description"});
  if (question && answer && parts.has("rejected_response"))
    return {{"user", question}, {"chosen_assistant", answer}, {"rejected_assistant", "rejected_response"}};
  if (question && answer) return {{"user", question}, {"assistant", answer}};
  if (caption || answer) return {{"caption", caption ? caption : answer}};
  return {};
}

std::string written_fields(const Parts::Fields& fields) {
  std::vector<std::string> written;
  for (auto field = fields.rbegin(); field != fields.rend(); ++field) // the user before the assistant
    written.push_back(fmt::format("{} = \"{}\"", field->first, field->second));
  return fmt::format("fields = {{ {} }}", join(written, ", "));
}

} // namespace fvlm
