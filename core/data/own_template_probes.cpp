// What a chat template does with tools and thoughts, found by rendering conversations that have some.
#include "base/error.h"
#include "data/own_template.h"

#include <nlohmann/json.hpp>

namespace fvlm {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr const char* probe_tool = "probe_of_a_chat_template";

} // namespace

Ordered OwnTemplate::probe_tools() {
  const Ordered parameters = {{"type", "object"}, {"properties", {{"x", {{"type", "integer"}}}}}};
  return Ordered::array(
      {{{"type", "function"},
        {"function", {{"name", probe_tool}, {"description", "A probe."}, {"parameters", parameters}}}}});
}

// A template that knows no tools leaves their calls out, and the answer to learn would be empty. One that refuses the
// probe may write them in other conversations.
void OwnTemplate::find_tool_calls() {
  const char* const name = probe_tool;
  const Ordered tools = probe_tools(), call = {{"id", "callprobe"},
                                               {"type", "function"},
                                               {"function", {{"name", name}, {"arguments", {{"x", 1}}}}}};
  const std::vector<Turn> turns = {
      {"user", "a probe"},
      {"assistant", "", 0, {}, std::make_shared<const Ordered>(Ordered{{"tool_calls", Ordered::array({call})}})}};
  try {
    writes_tool_calls_ = render_plainly(turns, false).text.find(name) != std::string::npos;
  } catch (const Error&) {
  }
  try {
    tool_call_form_ = fvlm::tool_call_form(render_plainly(turns, false, {.tools = &tools}).text, name);
  } catch (const Error&) {
  }
}

// A switch changes how a prompt is written. A template that refuses the probe may have one in other conversations.
void OwnTemplate::find_thinking_switch() {
  const std::vector<Turn> turns = {{"user", "a probe"}};
  const auto prompt = [&](const nlohmann::json& variables) {
    return render_plainly(turns, true, {.variables = &variables}).text;
  };
  try {
    const std::string usual = prompt(nlohmann::json::object());
    for (const char* variable : {"enable_thinking", "thinking"}) {
      const std::string on = prompt({{variable, true}});
      if (on != prompt({{variable, false}})) thinking_switch_ = {variable, on == usual};
      if (thinking_switch_) return;
    }
  } catch (const Error&) {
  }
}

} // namespace fvlm
