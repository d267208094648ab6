// The fields of a request that offer the model tools: tools, tool_choice, parallel_tool_calls.
#pragma once
#include "serve/chat_request.h"
#include "serve/request_fields.h"

#include <string_view>

namespace fvlm::serve {

// Sets the request's tools, and where it has to call one, the form of its answer. `body`: the whole request, which is
// valid JSON, an object. Throws Error(usage) at the field for what is not valid or not supported.
void read_tools(ChatRequest& request, const RequestFields& fields, std::string_view body, ApiForm form);

// Of a tool's arguments, as JSON Schema has it.
nlohmann::ordered_json schema_of(const nlohmann::ordered_json& tool);

// The call of a message, {"id", "type": "function", "function": {"name", "arguments"}}, as a chat template reads it:
// its arguments are an object of exact_json(), in the order of their text. Throws Error(usage) at `where`.
nlohmann::ordered_json read_call(const nlohmann::json& call, const std::string& where);

// The calls in the text of an answer that had to be some; nothing where it is none yet.
std::optional<std::vector<ToolCall>> required_calls(const std::string& text, const OfferedTools& tools);

} // namespace fvlm::serve
