// How calls of tools are written, by forms (tool_calls.h). Each reads all of the text, or nothing.
#pragma once
#include "data/tool_calls.h"

namespace fvlm {

using ToolCalls = std::optional<std::vector<ToolCall>>;

// {"name": "f", "arguments": {...}}, or a list of such.
ToolCalls read_json_calls(std::string_view text, const nlohmann::ordered_json* tools);
// The same with "parameters", once or several times with semicolons between, behind <|python_tag|> or without.
ToolCalls read_whole_call(std::string_view text, const nlohmann::ordered_json* tools);
// <function=f><parameter=x>value</parameter></function>, of Qwen3.5.
ToolCalls read_function_call(std::string_view text, const nlohmann::ordered_json* tools);
// f<arg_key>x</arg_key><arg_value>value</arg_value>, of GLM.
ToolCalls read_glm_call(std::string_view text, const nlohmann::ordered_json* tools);
// {"name": "f", "arguments": {...}} in a list; or f[ARGS]{...}, once or several times.
ToolCalls read_mistral_calls(std::string_view text, const nlohmann::ordered_json* tools);
// [f(x="value", y=1), g()], with the escapes of Python in texts.
ToolCalls read_python_calls(std::string_view text, const nlohmann::ordered_json* tools);
// call:f{x:<|"|>value<|"|>,y:1}
ToolCalls read_gemma_call(std::string_view text, const nlohmann::ordered_json* tools);

} // namespace fvlm
